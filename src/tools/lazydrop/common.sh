# Copyright (c) 2026, LazyDrop developers

# What auto and sanitize share: both read this file, and do one thing at a time in a
# build folder below .pg.

# shellcheck shell=sh disable=SC2034

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
top=$(CDPATH='' cd -- "$here/../../.." && pwd -P)

say()
{
	echo "lazydrop: $*" >&2
}

die()
{
	say "error: $1"
	shift
	for hint in "$@"; do say "hint: $hint"; done
	exit 1
}

case $top in
	*[[:space:]]*) die "cannot build in a directory whose path has a space" ;;
esac

UPSTREAM=${UPSTREAM-}
case $UPSTREAM in
	'' | /*) ;;
	*) UPSTREAM=$PWD/$UPSTREAM ;;
esac
[ -z "$UPSTREAM" ] || [ -e "$UPSTREAM" ] ||
	die "upstream source \"$UPSTREAM\" does not exist"
export UPSTREAM

# only_one FILE "$@": start the script again with a lock, unless it has it.
only_one()
{
	file=$1
	shift
	[ "${LAZYDROP_LOCKED-}" != "$file" ] && command -v flock >/dev/null 2>&1 || return 0
	LAZYDROP_LOCKED=$file
	export LAZYDROP_LOCKED
	status=0
	flock -n -E 111 -o "$file" "$0" "$@" || status=$?
	[ $status -ne 111 ] || die "another run is using \"$file\""
	exit $status
}

# Without -j, one job for each processor.
case " ${MAKEFLAGS-} " in
	*" -j"* | *--jobserver*) jobs= ;;
	*) jobs=-j$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) ;;
esac
make=${MAKE:-make}

# quietly WHAT LOG COMMAND...: keeps the time on the terminal while a long command
# writes into its log.
quietly()
{
	what=$1
	log=$2
	shift 2
	say "$what (log in $log)"
	"$@" >"$log" 2>&1 &
	pid=$!
	trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM HUP
	if [ -t 2 ]; then
		since=$(date +%s)
		while kill -0 "$pid" 2>/dev/null; do
			printf '\rlazydrop: %s, %s s ' "$what" $(($(date +%s) - since)) >&2
			sleep 1
		done
		printf '\r\033[K' >&2
	fi
	status=0
	wait "$pid" || status=$?
	trap - INT TERM HUP
	if [ $status -ne 0 ]; then
		tail -n 20 "$log" >&2
		die "failed: $what" "The log is $log."
	fi
}

# Options for configure.
options='--enable-tap-tests --enable-debug --enable-depend'
test_options='--enable-cassert --enable-injection-points'
libraries='--with-icu --with-lz4 --with-zstd --with-ssl=openssl --with-liburing'

# use_compiler COMPILER: let the next ones use it, with ccache, so that another
# checkout finds what it has compiled.
use_compiler()
{
	cc=$1
	command -v ccache >/dev/null 2>&1 || return 0
	cc="ccache $cc"
	CCACHE_BASEDIR=$top
	CCACHE_NOHASHDIR=yes
	export CCACHE_BASEDIR CCACHE_NOHASHDIR
}

# configure_in FOLDER SCRIPT OPTION...: configure there, unless it has been with the same.
configure_in()
{
	folder=$1
	script=$2
	shift 2
	wanted="$cc $* $(cksum <"$script") $(cksum <"$top/.pg/tree/configure")"
	if [ -f "$folder/GNUmakefile" ] &&
		[ "$(cat "$folder/.configured" 2>/dev/null)" = "$wanted" ]; then
		return 0
	fi
	rm -f "$folder/.configured"
	# shellcheck disable=SC2016
	quietly "configuring in $folder" "$folder/configure.log" \
		sh -c 'cd "$1" && shift && exec "$@"' sh "$folder" "$script" \
		CC="$cc" "$@" --prefix="$folder/install"
	printf '%s\n' "$wanted" >"$folder/.configured"
}
