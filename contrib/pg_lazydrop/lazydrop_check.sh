#!/bin/sh
# contrib/pg_lazydrop/lazydrop_check.sh
#
# lazydrop_check.sh [-w SECONDS] [-c SECONDS] [-f NUMBER] [-- PSQL-ARGUMENT...]: run
# lazydrop_check.sql, which is in the same directory, and exit like a plugin of Nagios: with 0
# for OK, 1 for WARNING, 2 for CRITICAL, and 3 for UNKNOWN.  The options are the limits
# "warning", "critical" and "fallbacks".  The environment variable PSQL may name psql.
#
# Copyright (c) 2026, LazyDrop developers

unknown()
{
	printf 'UNKNOWN - %s\n' "$1"
	exit 3
}

warning=60
critical=600
fallbacks=0
while getopts :w:c:f: option; do
	case $option in
		w) warning=$OPTARG ;;
		c) critical=$OPTARG ;;
		f) fallbacks=$OPTARG ;;
		*) unknown "usage: $0 [-w SECONDS] [-c SECONDS] [-f NUMBER] [-- PSQL-ARGUMENT...]" ;;
	esac
done
shift $((OPTIND - 1))
for limit in "$warning" "$critical" "$fallbacks"; do
	case $limit in
		'' | *[!0-9]*) unknown "\"$limit\" is not a number" ;;
	esac
done

script=$0
[ ! -L "$script" ] || script=$(readlink -f "$script")
export PGCONNECT_TIMEOUT="${PGCONNECT_TIMEOUT:-10}"
if ! out=$("${PSQL:-psql}" -XAtqw -v ON_ERROR_STOP=1 -v warning="$warning" \
	-v critical="$critical" -v fallbacks="$fallbacks" \
	-f "$(dirname "$script")/lazydrop_check.sql" "$@" 2>&1); then
	error=$(printf '%s\n' "$out" | grep -E '(error|ERROR|FATAL): ' | head -n 1)
	unknown "${error:-$(printf '%s\n' "$out" | head -n 1)}"
fi

# psql may have printed warnings, too.
line=$(printf '%s\n' "$out" | grep -E '^(OK|WARNING|CRITICAL|UNKNOWN) - ' | head -n 1)
printf '%s\n' "${line:-UNKNOWN - there is no result}"
case $line in
	OK*) exit 0 ;;
	WARNING*) exit 1 ;;
	CRITICAL*) exit 2 ;;
	*) exit 3 ;;
esac
