"""The ids of the events of a watched table, with which a client goes on."""

from __future__ import annotations

import pytest

from bascule.errors import BasculeError
from bascule.http.table_watch import _encode, watch_start
from bascule.tables.rows import TablePosition
from bascule.tables.watching import Begin, Caught, Change, WatchPosition

TABLE = bytes(range(16))
OF = b"-" + TABLE.hex().encode()


def id_of(event: bytes) -> str:
    (line,) = (line for line in event.split(b"\n") if line.startswith(b"id: "))
    return line[4:].decode()


@pytest.mark.parametrize("seen", [None, TablePosition(9, 3), TablePosition(9, -1)])
@pytest.mark.parametrize("epoch", [2, -1])
def test_an_id_leads_back_to_its_position(epoch: int, seen: TablePosition | None) -> None:
    change = Change(b"k", 4, 1_000, b"x", None, epoch, seen=seen)
    caught = Caught(WatchPosition(5, epoch, seen))
    for event in (_encode([change], OF), _encode(caught, OF)):
        for given in ((id_of(event), None), ("now", id_of(event))):
            assert watch_start(*given) == (WatchPosition(5, epoch, seen), TABLE)


def test_other_starts() -> None:
    assert watch_start(None, None) == (Begin.NOW, None)
    assert watch_start("state", None) == (Begin.STATE, None)
    assert watch_start("7", None) == (WatchPosition(7, -1), None)
    assert watch_start("7-2", None) == (WatchPosition(7, 2), b"")


@pytest.mark.parametrize(
    "start", ["later", "7-2-3-4", "7-2" + OF.decode() + "-9", f"{1 << 63}", "7-2-" + "0" * 31]
)
def test_what_is_no_start_is_refused(start: str) -> None:
    with pytest.raises(BasculeError, match="start must be now, state, the id of an event"):
        watch_start(start, None)


def test_what_was_seen_is_a_possible_offset() -> None:
    with pytest.raises(BasculeError, match="start must be now"):
        watch_start(f"7-2{OF.decode()}-{10**19 - 1}-2", None)
