"""A follower whose disk hangs is asked again and again, and keeps one answer for its leader."""

from __future__ import annotations

from bascule.raft.effects import WriteDone
from bascule.raft.membership import Members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    Heartbeat,
    SnapshotOffer,
    SnapshotReply,
)
from bascule.raft.node import RaftNode
from raft.cluster import DrivenNode, entries, follower

PROBES = 100


class HungDisk:
    """A node none of whose writes is done."""

    def __init__(self, found: DrivenNode) -> None:
        self.node: RaftNode = found.node
        self.writes: list[int] = []
        self.promised: list[AnyMessage] = []
        self.sent: list[AnyMessage] = []

    def step(self, *messages: AnyMessage) -> None:
        for message in messages:
            self.node.step(message)
            while (ready := self.node.ready()) is not None:
                self.sent += ready.send
                if ready.write is not None:
                    self.writes.append(ready.write.number)
                    self.promised += ready.write.then_send

    def end(self) -> None:
        """The disk goes on: all writes are done."""
        for number in self.writes:
            self.node.advance(WriteDone(number))


def hung() -> HungDisk:
    """Node 1 of three, with an entry on its disk, and two of its leader that are not."""
    found = HungDisk(follower(terms=(1,), term=1))
    found.step(AppendRequest(2, 1, 1, 1, 1, 1, entries(2, 1, 1)))
    assert found.promised == [AppendReply(1, 2, 1, True, 3)]
    return found


def test_a_probe_promises_nothing_again() -> None:
    found = hung()
    writes = list(found.writes)
    found.step(*[AppendRequest(2, 1, 1, 3, 1, 1, ()) for _ in range(PROBES)])
    found.step(*[AppendRequest(2, 1, 1, 1, 1, 1, entries(2, 1, 1)) for _ in range(PROBES)])
    found.step(*[AppendRequest(2, 1, 1, 2, 1, 1, ()) for _ in range(PROBES)])
    assert found.promised == [AppendReply(1, 2, 1, True, 3)]
    assert found.writes == writes
    assert found.sent == [], "nothing of it is on the disk"


def test_a_lost_answer_is_given_again_once_the_write_is_done() -> None:
    found = hung()
    found.end()
    probe = AppendRequest(2, 1, 1, 3, 1, 1, ())
    found.step(probe, probe)
    assert found.sent == [AppendReply(1, 2, 1, True, 3)] * 2


def test_more_is_promised_to_the_same_leader() -> None:
    found = hung()
    found.step(*[AppendRequest(2, 1, 1, 3, 1, 1, entries(4, 1)) for _ in range(PROBES)])
    assert found.promised == [AppendReply(1, 2, 1, True, index) for index in (3, 4)]


def test_another_leader_gets_a_promise_of_its_own() -> None:
    found = hung()
    found.step(*[AppendRequest(3, 1, 2, 3, 1, 1, ()) for _ in range(PROBES)])
    assert found.promised == [AppendReply(1, 2, 1, True, 3), AppendReply(1, 3, 2, True, 3)]


def test_entries_that_replace_promised_ones_are_promised() -> None:
    found = hung()
    found.step(*[AppendRequest(3, 1, 2, 1, 1, 1, entries(2, 2)) for _ in range(PROBES)])
    assert found.promised[1:] == [AppendReply(1, 3, 2, True, 2)]


def test_an_offer_of_a_snapshot_promises_nothing_again() -> None:
    found = hung()
    found.step(Heartbeat(2, 1, 1, 3, 1))
    offer = SnapshotOffer(2, 1, 1, 3, 1, Members((1, 2, 3)), (0,), (2,))
    found.step(*[offer for _ in range(PROBES)])
    assert found.promised[1:] == [SnapshotReply(1, 2, 1, 3)]
