# gnuplot lag.gnuplot
set terminal svg size 1000,560 noenhanced background "#ffffff"
set output "lag.svg"
set datafile separator ","
set lmargin at screen 0.08
set rmargin at screen 0.97
set tmargin at screen 0.80
set bmargin at screen 0.23
set xrange [0:42.7330060005188]
set yrange [-0.167493600845337:*]
set grid ytics lw 0.5 lc rgb "#c0c0c0"
set tics nomirror out
set border 3
set label "Replay lag of two standbys while their primary drops" \
  at screen 0.5, 0.955 center font ",16"
set label "PostgreSQL 18.6 (LazyDrop), shared_buffers = 16GB, fsync = off; 2026-11-22, 2 processors, 24 GB of memory" at screen 0.5, 0.91 center
set arrow from 2.00918698310852, graph 0 to 2.00918698310852, graph 1.08 nohead lw 1 dt (2,3) lc rgb "#606060"
set label " 1000 DROP TABLE" at 2.00918698310852, graph 1.08 left
set arrow from 15.0394849777222, graph 0 to 15.0394849777222, graph 1.03 nohead lw 1 dt (2,3) lc rgb "#606060"
set label " 1000 TRUNCATE" at 15.0394849777222, graph 1.03 left
set arrow from 27.7864110469818, graph 0 to 27.7864110469818, graph 1.08 nohead lw 1 dt (2,3) lc rgb "#606060"
set label " 60 DROP DATABASE" at 27.7864110469818, graph 1.08 left
set arrow from 34.808079957962, graph 0 to 34.808079957962, graph 1.03 nohead lw 1 dt (2,3) lc rgb "#606060"
set label " a table of 4 GB" at 34.808079957962, graph 1.03 left
set xlabel "seconds; drops begin at the dotted lines, at the same times in both rounds"
set ylabel "seconds behind"
set key at screen 0.5, 0.065 center center maxrows 2 samplen 6 width 2 Left reverse
plot "<grep ^off,standby, lag.csv" using 3:4 with lines lw 4 lc rgb "#c04000" title "lazydrop off, standby: at most 8.37 s", \
  "<grep ^off,cascade, lag.csv" using 3:4 with lines lw 4 dt (3,2) lc rgb "#e0a000" title "lazydrop off, cascade: at most 7.81 s", \
  "<grep ^on,standby, lag.csv" using 3:4 with lines lw 1.5 lc rgb "#0040c0" title "lazydrop on, standby: below 0.03 s", \
  "<grep ^on,cascade, lag.csv" using 3:4 with lines lw 1.5 dt (6,4) lc rgb "#00a0c0" title "lazydrop on, cascade: at most 0.18 s"
