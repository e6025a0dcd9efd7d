#!/usr/bin/env bash
# Try what `make wheel` built: the wheel holds every compiled twin and no C, the sdist builds, and both
# run in fresh environments.
#
#   tools/try_wheel.sh DIRECTORY
set -euo pipefail

directory=$1
python=.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheel=$(ls "$directory"/bascule-*.whl)
sdist=$(ls "$directory"/bascule-*.tar.gz)

"$python" - "$wheel" <<'CHECK'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
hot = {n[:-3] for n in names if n.rpartition("/")[2].startswith("_hot") and n.endswith(".py")}
inline = {n[:-4] for n in names if n.endswith(".pxd")}
built = {n.partition(".")[0] for n in names if n.endswith(".so")}
assert built == hot - inline, sorted(built ^ (hot - inline))
sources = [n for n in names if n.endswith((".c", ".h"))]
assert not sources, sources
print(f"{sys.argv[1]}: {len(built)} compiled modules, no C")
CHECK

for what in "$wheel" "$sdist"; do
    "$python" -m venv --clear "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$what"
    # Away from the source tree, so that what is installed is what is imported.
    (cd "$work" && venv/bin/python -c "import bascule" && venv/bin/bascule --version | tee version)
    grep -q "^bascule .*(compiled)" "$work/version"
    # Without extras: what needs one names it, and the rest works.
    (cd "$work" && venv/bin/bascule pipeline new archive -o - | grep '^kind = "archive"')
    (cd "$work" && venv/bin/python -m bascule.sim raft --seed 7 --seconds 1)
    needs=$( (cd "$work" && venv/bin/bascule pipeline check none.toml) 2>&1 || true)
    grep -q "bascule\[pipelines\]" <<< "$needs"
done
