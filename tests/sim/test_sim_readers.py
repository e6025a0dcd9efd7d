"""What readers have read is compared with what others read, and with the logs at the end."""

from __future__ import annotations

from bascule.sim.cluster.checkers.log_contents import StoredRecord
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.consumers.read_history import IN_ORDER, IN_RANGE, UNDONE, ReadHistory
from bascule.sim.cluster.simulation import make_prng
from bascule.sim.cluster.streams import StreamPlan, draw_streams

KEY = "s0", 0


def record(offset: int, body: bytes = b"x") -> StoredRecord:
    return StoredRecord(offset, "", None, body)


class Readers:
    """A history, and the invariants that it has found broken."""

    def __init__(self, trait: str = "plain") -> None:
        (plan,) = draw_streams(make_prng(1), 1, replicas=3, traits=(trait,))
        plans: dict[str, StreamPlan] = {plan.name: plan}
        self.broken: list[str] = []
        self.losses = AllowedLosses()
        self.history = ReadHistory(plans, self.losses, lambda name, _: self.broken.append(name))

    def read(self, position: int, found: StoredRecord) -> None:
        self.history.on_read("reader 200", KEY, position, found)


def test_two_reads_of_an_offset_agree() -> None:
    readers = Readers()
    readers.read(0, record(0))
    readers.read(0, record(0))
    assert readers.broken == []
    readers.read(0, record(0, b"y"))
    assert readers.broken == [UNDONE]


def test_only_compaction_leaves_gaps() -> None:
    readers = Readers("compacted")
    readers.read(3, record(5))
    assert readers.broken == []
    readers.read(6, record(5))
    assert readers.broken == [IN_ORDER]
    readers = Readers()
    readers.read(3, record(5))
    assert readers.broken == [IN_ORDER]


def test_what_was_read_is_out_of_range_only_before_the_log_starts() -> None:
    readers = Readers()
    readers.history.on_out_of_range("reader 200", KEY, 7, 8)
    assert readers.broken == []
    readers.history.on_out_of_range("reader 200", KEY, 8, 8)
    assert readers.broken == [IN_RANGE]


def test_what_was_read_is_there_at_the_end() -> None:
    readers = Readers()
    readers.read(0, record(0))
    readers.read(1, record(1))
    assert not readers.history.compare(KEY, {0: record(0), 1: record(1)}, 0)
    assert not readers.history.compare(KEY, {1: record(1)}, 1)
    assert "was read, now there is None" in readers.history.compare(KEY, {1: record(1)}, 0)


def test_after_a_loss_that_an_operator_allows_nothing_is_compared() -> None:
    readers = Readers()
    readers.read(0, record(0))
    readers.losses.allowed.add("s0")
    readers.read(0, record(0, b"y"))
    readers.history.on_out_of_range("reader 200", KEY, 1, 0)
    assert readers.broken == []
    assert not readers.history.compare(KEY, {}, 0)
