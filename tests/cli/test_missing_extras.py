"""Commands of an installation without extras: what needs none works, the rest names its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import runpy, sys
class Finder:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "pandas", "pyspark", "greenlet", "matplotlib"}:
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path = [Finder(each) for each in sys.meta_path]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a module of ours; a console of 80 columns wraps lines."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


def test_an_example_file_is_written(tmp_path: Path) -> None:
    code, text = run(tmp_path, "bascule.cli.main", "pipeline", "new", "archive")
    assert (code, "wrote archive.toml" in text) == (0, True), text


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_pipeline_names_its_extra(tmp_path: Path, command: str) -> None:
    run(tmp_path, "bascule.cli.main", "pipeline", "new", "archive")
    code, text = run(tmp_path, "bascule.cli.main", "pipeline", command, "archive.toml")
    assert code == 2, text
    assert "needs numpy, which is not installed: pip install 'bascule[pipelines]'" in text


def test_only_whole_nodes_need_the_extra_of_the_simulator(tmp_path: Path) -> None:
    code, text = run(tmp_path, "bascule.sim", "raft", "--seed", "7", "--seconds", "1")
    assert code == 0, text
    code, text = run(tmp_path, "bascule.sim", "cluster", "--seed", "7")
    assert (code, text) == (
        2,
        "a simulation of whole nodes needs greenlet, which is not installed: "
        "pip install 'bascule[sim]'\n",
    )
