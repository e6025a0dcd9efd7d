"""The source of the release before this one, from the history of the repository.

That is the last commit at which the newest cluster version was one less. It runs with the compiled
modules of this tree where their sources are the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bascule.cluster_version import NEWEST

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MODULE = "src/bascule/cluster_version.py"
NUMBER = re.compile(r"^NEWEST: Final = (\d+)$", re.MULTILINE)


MISSING = (
    f"the history has no release with cluster version {NEWEST - 1}: fetch all of it, as with "
    "`git fetch --unshallow`"
)


def release_before(place: Path) -> Path:
    """The directory for `PYTHONPATH`, below `place`. Skips the test where the history is missing,
    as in a shallow clone."""
    found = unpack_release_before(place)
    if found is None:
        pytest.skip(MISSING)
    return found


def unpack_release_before(place: Path) -> Path | None:
    """The directory for `PYTHONPATH`, below `place`; None: the history is missing."""
    commit = _find_commit()
    if commit is None:
        return None
    place.mkdir(parents=True)
    packed = _git("archive", commit, "src")
    assert packed is not None, f"git archive {commit} failed"
    subprocess.run(["tar", "-x"], cwd=place, input=packed, check=True)
    earlier = place / "src"
    hot = [each.relative_to(SOURCE) for each in SOURCE.glob("bascule/**/_hot*.p*")]
    for path in hot:
        if _same(SOURCE / path, earlier / path):
            for compiled in (SOURCE / path).parent.glob(f"{path.stem}.*.so"):
                shutil.copy(compiled, (earlier / path).parent)
    return earlier


def _find_commit() -> str | None:
    """The parent of the commit that raised the newest version last, looked for from the latest."""
    changes = _git("log", "--format=%H", "-G", "^NEWEST: Final = ", "--", MODULE)
    for commit in (changes or b"").decode().split():
        parent = _git("rev-parse", "--verify", "--quiet", f"{commit}^")
        before = None if parent is None else _git("show", f"{commit}^:{MODULE}")
        found = None if before is None else NUMBER.search(before.decode())
        if parent is not None and found is not None and int(found[1]) == NEWEST - 1:
            return parent.decode().strip()
    return None


def _git(*arguments: str) -> bytes | None:
    """The output; None where git fails or is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()
