"""The metadata image that a tool reads from the files of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from bascule.controller.cluster.image_files.stored_image import DATABASE, read_stored_image
from bascule.errors import CorruptData
from bascule.raft_driver.sqlite_store import SqliteDatabase


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose database has a few commits."""
    path = tmp_path / DATABASE
    path.parent.mkdir()
    for _ in range(3):
        SqliteDatabase.open(str(path), node_id=1).close()
    return tmp_path


@pytest.mark.parametrize("content", [None, b"", b"x" * 100])
def test_a_mark_that_is_gone_is_named_where_it_is_and_the_image_read(
    data: Path, content: bytes | None
) -> None:
    mark = data / f"{DATABASE}-synced"
    mark.unlink()
    if content is not None:
        mark.write_bytes(content)
    with pytest.raises(CorruptData, match=f"^{mark} is corrupt"):
        read_stored_image(data)
    told: list[CorruptData] = []
    assert not read_stored_image(data, told.append).streams
    assert [each.file for each in told] == [str(mark)]


def test_a_database_that_cannot_be_read_is_named_where_it_is(data: Path) -> None:
    (data / DATABASE).write_bytes(b"")
    told: list[CorruptData] = []
    with pytest.raises(CorruptData, match=f"^{data / DATABASE} is corrupt"):
        read_stored_image(data, told.append)
    assert told == []
