#!/usr/bin/env bash
# What `make setup` does before pip: find a Python, make the virtual environment, and see to the
# programs of the system that tests and the demo run. As root on Debian or Ubuntu it installs what
# is missing; anywhere else it says exactly what to install.
#
#   tools/setup.sh venv DIR     make the virtual environment in DIR
#   tools/setup.sh system       Java for Spark; kcat and strace for the tests
set -euo pipefail

PYTHON_MINOR_MIN=11
JAVA_MIN=17

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf '\033[31m%s\033[0m\n' "$*" >&2; exit 1; }

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_updated=no
apt_install() {
    say "installing with apt-get: $*"
    if [ "$apt_updated" = no ]; then
        apt-get update -qq
        apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Install Debian packages, or stop and name them: need WHAT-FOR PACKAGE...
need() {
    local why=$1
    shift
    if can_apt; then
        apt_install "$@"
    else
        fail "$why is missing; install it and run make again:  sudo apt-get install $*"
    fi
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" \
            2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
}

make_venv() {
    local directory=$1 python minor
    python=$(find_python)
    if [ -z "$python" ]; then
        need "Python 3.$PYTHON_MINOR_MIN or newer" python3
        python=$(find_python)
        [ -n "$python" ] || fail "no Python 3.$PYTHON_MINOR_MIN or newer: set PYTHON=/path/to/python"
    fi
    minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        need "the venv module of $python" "python$minor-venv"
    if [ "${BASCULE_PURE:-}" != 1 ]; then
        command -v cc >/dev/null || command -v gcc >/dev/null || need "a C compiler" gcc libc6-dev
        "$python" - <<-'CHECK' || need "Python.h of $python" "python$minor-dev"
			import os, sys, sysconfig
			sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
		CHECK
    fi
    say "making $directory with $("$python" --version) at $(command -v "$python")"
    "$python" -m venv --clear "$directory"
    "$directory/bin/pip" install --quiet --disable-pip-version-check --upgrade pip
}

java_version() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 || true
}

see_to_system() {
    local found
    found=$(java_version)
    if [ -z "$found" ] || [ "$found" -lt "$JAVA_MIN" ]; then
        need "Java $JAVA_MIN or newer (found: ${found:-none}), which Spark runs on," \
            openjdk-17-jre-headless
    fi
    command -v kcat >/dev/null || need "kcat, a Kafka client the tests run," kcat
    command -v strace >/dev/null || need "strace, which a test watches sendfile with," strace
}

case "${1:-}" in
    venv) make_venv "$2" ;;
    system) see_to_system ;;
    *) fail "usage: tools/setup.sh venv DIR | system" ;;
esac
