"""The effects of the core, command by command, as reviewed text; see `environment.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.environment import run_script

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    found = run_script(written)
    if request.config.getoption("--rewrite"):
        path.write_text(found)
        written = found
    assert found == written, f"{path.name} differs; if it should, use --rewrite"


def test_transcripts_exist() -> None:
    assert TRANSCRIPTS
