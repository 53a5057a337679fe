# Copyright (c) 2026, LazyDrop developers

# shellcheck shell=sh

# A control group of the user's own, in which bench limits a server's memory: with version
# 1 below the one that we are in, with version 2 beside it, because there a group with
# processes has no subgroups.  Without it that is left out.
# make_control_group USER: sets LAZYDROP_CONTROL_GROUP.
make_control_group()
{
	path=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
	if [ -n "$path" ] && [ -d "/sys/fs/cgroup/memory$path" ]; then
		ours=/sys/fs/cgroup/memory$path
		group=$ours
	else
		path=$(sed -n 's/^0:://p' /proc/self/cgroup)
		ours=/sys/fs/cgroup$path
		group=$(dirname "$ours")
		grep -q memory "$group/cgroup.controllers" 2>/dev/null || return 0
	fi
	group=$group/lazydrop-bench-$$
	mkdir "$group" 2>/dev/null || return 0
	trap 'echo $$ 2>/dev/null >"$ours/cgroup.procs"
		rmdir "$group/limited" "$group/main" "$group" 2>/dev/null || :' EXIT
	trap 'exit 130' INT TERM HUP
	[ ! -f "$group/cgroup.subtree_control" ] ||
		echo +memory >"$group/cgroup.subtree_control" 2>/dev/null || return 0
	mkdir "$group/main" "$group/limited" || return 0
	chown -R "$1" "$group/main" "$group/limited"
	[ ! -f "$group/cgroup.subtree_control" ] ||
		chown "$1" "$group/cgroup.procs"
	echo $$ >"$group/main/cgroup.procs" || return 0
	LAZYDROP_CONTROL_GROUP=$group
	export LAZYDROP_CONTROL_GROUP
}
