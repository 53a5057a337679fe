# Copyright (c) 2026, LazyDrop developers

# Top-level makefile of a checkout that has not been configured.  GNU make
# prefers the GNUmakefile that configure leaves.
#
# The goals here need no configure: they install what is missing, fetch and
# prepare the source, configure and build below .pg/, and run as an
# unprivileged user where PostgreSQL demands it.
#
#   make demo          the main job, shown in a few minutes
#   make docs          the manual, validated, as HTML and man pages
#   make check-world   upstream's whole test suite, and ours
#   make check         a few minutes' worth of it
#   make bench         the fork against PostgreSQL itself; see bench/README.md
#   make patroni       the same in a cluster under Patroni; see bench/patroni/README.md
#   make deb           the fork as a package beside Debian's own, in dist/
#   make check-packages  it is built again, installed, used, removed
#   make installcheck-packages  Debian's own test suites are run with it
#   make full-packages  all of Debian's packages with the fork, in dist/
#   make check-full-packages  they are built again, installed, used, removed
#   make bench-packages  it is compared with Debian's; see bench/README.md
#
# PG_MAJOR=17 chooses PostgreSQL 17; UPSTREAM=TARBALL|DIR names PostgreSQL's source.

automatic = demo docs check check-world bench patroni
packages = deb check-packages installcheck-packages bench-packages full-packages check-full-packages

help:
	@echo 'make demo, make docs, make check, make check-world, make bench and make patroni do'
	@echo 'everything by themselves.  So do make deb and make full-packages, which make packages for'
	@echo 'Debian, and make check-packages and make check-full-packages, which try them.'
	@echo 'To build and install, run ./configure first (see README.md).'

$(automatic):
	+@src/tools/lazydrop/auto $@

$(packages):
	@src/tools/lazydrop/deb $(filter --%,$(@:%-packages=--%))

# Goals that upstream has, and any other: what to do, and an error.
.DEFAULT:
	@echo 'You need to run ./configure first; see README.md.' >&2
	@false

# not to be looked for by the rule above
Makefile: ;

.PHONY: help $(automatic) $(packages)

# They share the prepared tree and, as root, the copy of the checkout.
.NOTPARALLEL:
