"""What a process has synced is known when it is killed, and only what it has not is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torture.synced_journal import synced_sizes

pytestmark = pytest.mark.tier3

PROGRAM = """
import os, sys
sys.path.insert(0, {place!r})
from synced_journal import watch
watch({journal!r})
fd = os.open({file!r}, os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 100)
os.fdatasync(fd)
os.write(fd, b"y" * 50)
{more}
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", 100),
        ("os.fdatasync(fd)", 150),
        ("os.ftruncate(fd, 30)", 30),
        ("os.ftruncate(fd, 30); os.lseek(fd, 0, 2); os.write(fd, b'z' * 9)", 30),
    ],
)
def test_the_synced_size_of_a_killed_process(tmp_path: Path, more: str, expected: int) -> None:
    journal, file = tmp_path / "journal", tmp_path / "file"
    program = PROGRAM.format(
        place=str(Path(__file__).parent), journal=str(journal), file=str(file), more=more
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -9
    assert synced_sizes(journal) == {os.stat(file).st_ino: expected}
