"""Up to where a table is complete that catches up with a compacted log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bascule.tables.completeness import Completeness


def test_without_removed_records_it_is_where_it_stands() -> None:
    table = Completeness()
    table.on_applied(5, missing=0, committed_end=-1)
    assert table.position == 5, "not even the leader has to be known"


def test_behind_removed_records_it_waits_for_those_in_their_place() -> None:
    table = Completeness()
    table.on_applied(5, missing=0, committed_end=20)
    table.on_applied(12, missing=3, committed_end=20)
    table.on_applied(19, missing=0, committed_end=25)
    assert table.position == 5
    table.on_applied(20, missing=0, committed_end=26)
    assert table.position == 20, "what is committed meanwhile is not waited for"


def test_how_far_they_may_go_is_not_known_before_the_leader_is() -> None:
    table = Completeness(may_have_gaps=True)
    table.on_applied(12, missing=0, committed_end=-1)
    assert table.position == 0
    table.on_applied(12, missing=0, committed_end=13)
    assert table.position == 0
    table.on_applied(13, missing=0, committed_end=14)
    assert table.position == 13


def test_what_an_unclean_election_has_lost_is_not_waited_for() -> None:
    table = Completeness()
    table.on_applied(12, missing=3, committed_end=20)
    table.on_applied(12, missing=0, committed_end=12)
    assert table.position == 12


@given(st.lists(st.integers(0, 3), min_size=1), st.booleans(), st.data())
def test_no_position_lacks_a_record(
    changes: list[int], restarts: bool, data: st.DataObject
) -> None:
    """A log of keys, of which compaction leaves the last records below an offset."""
    clean = data.draw(st.integers(0, len(changes)))
    kept = [
        (offset, key)
        for offset, key in enumerate(changes)
        if offset >= clean or key not in changes[offset + 1 : clean]
    ]
    table, has, position = Completeness(), dict[int, int](), 0
    while position < len(changes):
        end = data.draw(st.integers(position + 1, len(changes)))
        applied = [(offset, key) for offset, key in kept if position <= offset < end]
        has |= {key: offset for offset, key in applied}
        if restarts and data.draw(st.booleans()):
            table = Completeness(may_have_gaps=True)
        told = data.draw(st.sampled_from([-1, len(changes)])) if restarts else len(changes)
        missing = end - position - len(applied)
        position = end
        table.on_applied(position, missing=missing, committed_end=told)
        for offset, key in enumerate(changes[: table.position]):
            assert has.get(key, -1) >= offset
    table.on_applied(position, missing=0, committed_end=len(changes))
    assert table.position == len(changes)
