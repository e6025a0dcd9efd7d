"""The hot modules compile once: what is current in place is taken by every command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.twins import hot_modules

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    os.environ.get("BASCULE_PURE") == "1", reason="BASCULE_PURE=1: nothing is compiled"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a build needs of the repository, compiled in place, and no compiler."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path / name)
    shutil.copytree(
        ROOT / "src", tmp_path / "src",
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
    )  # fmt: skip
    for compiled in tmp_path.rglob("_hot*.so"):
        compiled.touch()
    return tmp_path


def run_setup(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=tree,
        env={**os.environ, "CC": "false", "BASCULE_PURE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_current_modules_are_not_compiled_again(tree: Path) -> None:
    for arguments in (["build_ext", "--inplace"], ["build_ext", "--build-lib", "lib"]):
        done = run_setup(tree, *arguments)
        assert done.returncode == 0, done.stderr
        assert "compiling" not in done.stderr
    assert len(list((tree / "lib").rglob("_hot*.so"))) == len(hot_modules())


def test_metadata_needs_no_compiler_and_no_translation(tree: Path) -> None:
    for compiled in tree.rglob("_hot*.so"):
        compiled.unlink()
    done = run_setup(tree, "egg_info")
    assert done.returncode == 0, done.stderr
    assert not list((tree / "build").rglob("*.c"))


def test_a_module_that_changed_is_compiled_and_a_failure_is_one(tree: Path) -> None:
    changed = tree / "src" / "bascule" / "ingest" / "routing" / "_hot.py"
    later = next(changed.parent.glob("_hot*.so")).stat().st_mtime + 10
    os.utime(changed, (later, later))
    done = run_setup(tree, "build_ext", "--inplace")
    assert done.returncode != 0
    assert "compiling 1 hot modules" in done.stderr
    assert "0 of 1  failed bascule.ingest.routing._hot" in done.stderr
