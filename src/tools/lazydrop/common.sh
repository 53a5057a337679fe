# Copyright (c) 2026, LazyDrop developers

# What bootstrap, auto and sanitize share.

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

UPSTREAM=${UPSTREAM:+$(realpath -s -e "$UPSTREAM")}
export UPSTREAM

# only_one FILE "$@": start the script again with a lock, unless it has it.
only_one()
{
	file=$1
	shift
	[ "${LAZYDROP_LOCKED-}" != "$file" ] || return 0
	status=0
	LAZYDROP_LOCKED=$file flock -n -E 111 -o "$file" "$0" "$@" || status=$?
	[ $status -ne 111 ] || die "another run is using \"$file\""
	exit $status
}

# choose_major: set PG_MAJOR, the tree of that major version, and the folder of what is
# made for it.
choose_major()
{
	major=$("$here/prepare" ${UPSTREAM:+--with-upstream="$UPSTREAM"} --print-major)
	tree=$top/${major#* }
	state=${tree%/tree}
	export PG_MAJOR="${major% *}"
}

# Without -j, one job for each processor.
case " ${MAKEFLAGS-} " in
	*" -j"* | *--jobserver*) jobs= ;;
	*) jobs=-j$(nproc) ;;
esac
make=${MAKE:-make}

# quietly WHAT LOG COMMAND...: a long command writes into its log.
quietly()
{
	what=$1
	log=$2
	shift 2
	say "$what (log in $log)"
	"$@" >"$log" 2>&1 || {
		tail -n 20 "$log" >&2
		die "failed: $what" "The log is $log."
	}
}

# The long tests as well, unless the environment says otherwise.
: "${PG_TEST_EXTRA=lazydrop_long}"
export PG_TEST_EXTRA

# Options for configure.
options='--enable-tap-tests --enable-debug --enable-depend'
test_options='--enable-cassert --enable-injection-points'
# (17 says that it does not know the last one.)
libraries='--with-icu --with-lz4 --with-zstd --with-ssl=openssl --with-liburing'

# configure_in FOLDER SCRIPT COMPILER OPTION...: configure there, unless it has been with
# the same; with ccache, so that another checkout finds what it has compiled.
configure_in()
{
	folder=$1
	script=$2
	cc=$3
	shift 3
	if command -v ccache >/dev/null 2>&1; then
		cc="ccache $cc"
		export CCACHE_BASEDIR="$top" CCACHE_NOHASHDIR=yes
	fi
	mkdir -p "$folder"
	wanted="$cc $* $(cksum <"$script") $(cksum <"$tree/configure")"
	[ ! -f "$folder/GNUmakefile" ] ||
		[ "$(cat "$folder/.configured" 2>/dev/null)" != "$wanted" ] || return 0
	rm -f "$folder/.configured"
	quietly "configuring in $folder" "$folder/configure.log" \
		env -C "$folder" "$script" CC="$cc" "$@" --prefix="$folder/install"
	printf '%s\n' "$wanted" >"$folder/.configured"
}
