"""Pages as tests: which run together, and a run of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from support.documents.network import command_prefix
from support.documents.pages import ROOT, Page, chapters, page_paths, read_page


def chapters_to_run(
    *, with_spark: bool, of: str = "", but: tuple[str, ...] = (), long: tuple[str, ...] = ()
) -> list[Any]:
    """A parameter for each chapter with something to run: those below the folder `of`, without
    those below the folders `but`. Those of `long` are for `make test-long`."""
    return [
        pytest.param(pages, id=name, marks=[pytest.mark.long] if name in long else [])
        for name, pages in chapters([read_page(path) for path in page_paths()]).items()
        if name.startswith(of)
        and not name.startswith(but)
        and any(page.runs_with_spark if with_spark else page.runs_without_spark for page in pages)
    ]


def run_chapter(pages: list[Page], *, with_spark: bool) -> None:
    """Run pages in a process and a network of their own; fail with what failed."""
    flags = ["--with-spark"] if with_spark else []
    done = subprocess.run(
        [
            *command_prefix(), sys.executable, "-m", "support.documents.runner", *flags,
            *(page.name for page in pages),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    print(done.stderr)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
