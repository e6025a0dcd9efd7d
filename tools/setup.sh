#!/usr/bin/env bash
# What `make setup` does before pip: find a Python, make the virtual environment, and see to the
# programs of the system that tests and the demo run. As root on Debian or Ubuntu it installs what
# is missing; anywhere else it says exactly what to install.
#
#   tools/setup.sh venv DIR        make the virtual environment in DIR
#   tools/setup.sh packages DIR    install requirements.lock in it
#   tools/setup.sh system DIR      Java for Spark; kcat, curl and strace for the tests; in DIR promtool
set -euo pipefail

PYTHON_MINOR_MIN=11
JAVA_MIN=17

bold='' red='' plain=''
if [ -t 2 ]; then bold=$'\033[1m' red=$'\033[31m' plain=$'\033[0m'; fi
say() { printf '%s%s%s\n' "$bold" "$*" "$plain" >&2; }
fail() { printf '%s%s%s\n' "$red" "$*" "$plain" >&2; exit 1; }

detail=last_line
last_line() { tail -n 1 "$1" | tr -d '\r'; }

# Run a command that prints much or nothing: every 10 s, a line with its last line of output (or what
# `$detail` makes of it). Where it fails, all of its output is shown: while_saying WHAT COMMAND...
while_saying() {
    local what=$1 output reporter status=0
    shift
    output=$(mktemp)
    say "$what"
    (
        seconds=0
        # Not longer than this script, which an interrupt may end.
        while sleep 10 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 10))
            printf '  %s s  %.90s\n' "$seconds" "$($detail "$output")" >&2
        done
    ) &
    reporter=$!
    "$@" >"$output" 2>&1 || status=$?
    kill "$reporter" 2>/dev/null
    wait "$reporter" 2>/dev/null || true
    [ "$status" = 0 ] || cat "$output" >&2
    rm -f "$output"
    return "$status"
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_updated=no
apt_install() {
    if [ "$apt_updated" = no ]; then
        while_saying "reading Debian's lists of packages" apt-get update
        apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive while_saying "installing with apt-get: $*" \
        apt-get install -y --no-install-recommends "$@"
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
    while_saying "with its own pip" "$python" -m venv --clear "$directory"
    while_saying "the newest pip" \
        "$directory/bin/pip" install --disable-pip-version-check --progress-bar off --upgrade pip
}

# An installer says nothing while it unpacks.
packages_installed() {
    printf '%s packages installed; %s' \
        "$(find "$packages" -maxdepth 1 -name '*.dist-info' | wc -l)" "$(last_line "$1")"
}

# uv, itself of the lock, downloads and unpacks several packages at once, and leaves bytecode to the
# first import: a quarter of the work of pip. Spark has no wheel; what is in the one that is built is
# compressed already. Both compare the hashes of all. Where pip is told of another index, which uv
# does not read, or uv fails, pip installs the packages.
install_packages() {
    local pip=("$1/bin/pip" install --disable-pip-version-check --progress-bar off --require-hashes)
    packages=$(echo "$1"/lib/python*/site-packages)
    detail=packages_installed
    if [ -z "$("$1/bin/pip" config list 2>/dev/null | grep -E 'index-url|no-index|proxy')" ] &&
        while_saying "installing uv, which installs the others" install_uv "$1" &&
        while_saying "installing the packages of requirements.lock (Spark alone is 450 MB; a few minutes)" \
            "$1/bin/uv" pip install --python "$1/bin/python" --require-hashes \
            --config-settings-package pyspark:--build-option=--compression=stored \
            -r requirements.lock; then
        return
    fi
    while_saying "installing the packages of requirements.lock with pip" "${pip[@]}" -r requirements.lock
}

install_uv() {
    local lines
    lines=$(mktemp)
    sed -n '/^uv==/,/[^\\]$/p' requirements.lock >"$lines"
    "${pip[@]}" -r "$lines" || return
    rm "$lines"
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
    command -v curl >/dev/null || need "curl, which the pages use," curl
    command -v strace >/dev/null || need "strace, which a test watches sendfile with," strace
    command -v systemd-analyze >/dev/null || need "systemd-analyze, which checks the unit," systemd
    command -v promtool >/dev/null || [ -x "$1/bin/promtool" ] || get_promtool "$1/bin" ||
        say "promtool of Prometheus is missing: the test that runs the alert rules will be skipped"
}

# Of Debian's package, which would start a server where it is installed.
get_promtool() {
    local place status=0
    place=$(mktemp -d)
    (
        cd "$place" &&
            { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
    ) >/dev/null 2>&1 && mv "$place/usr/bin/promtool" "$1" || status=$?
    rm -rf "$place"
    return "$status"
}

case "${1:-}" in
    venv) make_venv "$2" ;;
    packages) install_packages "$2" ;;
    system) see_to_system "$2" ;;
    *) fail "usage: tools/setup.sh venv DIR | packages DIR | system DIR" ;;
esac
