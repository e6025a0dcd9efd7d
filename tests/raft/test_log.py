"""The ring against a list as model, its capacity, and the entries it keeps after a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bascule.raft.config import RaftConfig
from bascule.raft.log import RaftLog
from bascule.raft.membership import Members
from bascule.raft.messages import ENTRY_OVERHEAD_BYTES, Entry, EntryKind, RaftSnapshot, size_of
from raft.cluster import Cluster

MEMBERS = Members.of(1, 2, 3)


def entry_at(index: int, term: int, size: int = 1) -> Entry:
    return Entry(index, term, EntryKind.NORMAL, bytes(size))


def snapshot_at(index: int, term: int) -> RaftSnapshot:
    return RaftSnapshot(index, term, MEMBERS, (b"state",))


class LogModel(RuleBasedStateMachine):
    """A `RaftLog`, and a list with the same entries as model."""

    @initialize(capacity=st.integers(1, 12) | st.integers(30, 50))
    def begin(self, capacity: int) -> None:
        self.log = RaftLog(capacity)
        self.entries: list[Entry] = []
        self.longest = 0
        """The maximum number of entries so far."""
        self.first = 1
        self.before: int | None = 0
        """The term of the entry before the first; None if it is not known."""
        self.snapshot: RaftSnapshot | None = None
        self.commit = 0

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    @property
    def snapshot_index(self) -> int:
        return self.snapshot.index if self.snapshot else 0

    def term(self, index: int) -> int | None:
        if self.first <= index <= self.last:
            return self.entries[index - self.first].term
        if self.snapshot is not None and index == self.snapshot.index:
            return self.snapshot.term
        if index == 0:
            return 0 if self.first == 1 or self.snapshot is None else None
        return self.before if index == self.first - 1 else None

    # -- changes ------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), newer=st.integers(0, 2), size=st.integers(0, 40))
    def append(self, count: int, newer: int, size: int) -> None:
        term = max(self.log.last_term, 1) + newer
        for _ in range(min(count, max(self.log.room, 0))):
            self.add(entry_at(self.last + 1, term, size))

    @precondition(lambda self: self.log.room > 0)
    @rule(terms=st.lists(st.integers(0, 1), min_size=1, max_size=8), size=st.integers(0, 40))
    def extend(self, terms: list[int], size: int) -> None:
        """A follower appends several entries at once, of one or more terms."""
        term = max(self.log.last_term, 1)
        new = []
        for index, newer in enumerate(terms[: self.log.room], self.last + 1):
            term += newer
            new.append(entry_at(index, term, size))
        self.entries += new
        self.log.extend(new)

    @rule()
    def append_beyond_room(self) -> None:
        """The no-op of a new leader may exceed the capacity."""
        self.add(Entry(self.last + 1, self.log.last_term + 1, EntryKind.NO_OP, b""))

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.log.append(entry)

    @precondition(lambda self: self.last > self.commit)
    @rule(data=st.data())
    def commit_some(self, data: st.DataObject) -> None:
        self.commit = data.draw(st.integers(self.commit, self.last))
        self.log.commit_to(self.commit)

    @precondition(lambda self: self.last > self.commit)
    @rule(data=st.data())
    def truncate_from(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.commit + 1, self.last))
        del self.entries[index - self.first :]
        self.log.truncate_from(index)

    @precondition(lambda self: self.commit > self.snapshot_index)
    @rule(data=st.data())
    def take_snapshot(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.snapshot_index + 1, self.commit))
        until = data.draw(st.integers(self.first - 1, index))
        term = self.term(index)
        assert term is not None
        self.snapshot = self.log.snapshot = snapshot_at(index, term)
        if until >= self.first:
            self.before = self.term(until)
            del self.entries[: until - self.first + 1]
            self.first = until + 1
        self.log.truncate_until(until)

    @rule(ahead=st.integers(0, 5), newer=st.integers(0, 1))
    def install_snapshot(self, ahead: int, newer: int) -> None:
        term = max(self.log.last_term, 1) + newer
        self.snapshot = snapshot_at(max(self.commit, 1) + ahead, term)
        self.commit = self.snapshot.index
        self.entries, self.first, self.before = [], self.commit + 1, term
        self.log.reset(self.snapshot)

    @rule()
    def restart(self) -> None:
        """The commit index is lost, and so is the term before the first entry."""
        self.log = RaftLog(self.log.capacity, self.snapshot, tuple(self.entries))
        self.commit = self.snapshot_index
        if self.entries and self.first - 1 not in (0, self.snapshot_index):
            self.before = None

    # -- checks -------------------------------------------------------------------------------

    @invariant()
    def same_bounds(self) -> None:
        log = self.log
        assert (log.first, log.last, len(log)) == (self.first, self.last, len(self.entries))
        assert (log.commit, log.snapshot_index) == (self.commit, self.snapshot_index)
        assert log.first - 1 <= log.snapshot_index <= log.commit <= log.last

    @invariant()
    def same_entries(self) -> None:
        log = self.log
        assert log.slice(self.first, self.last + 1) == tuple(self.entries)
        middle = self.first + len(self.entries) // 2
        assert log.slice(self.first, middle) == tuple(self.entries[: middle - self.first])
        assert log.slice(middle, self.last + 1) == tuple(self.entries[middle - self.first :])
        assert [log.entry(e.index) for e in self.entries] == self.entries

    @invariant()
    def same_terms(self) -> None:
        for index in range(self.last + 3):
            assert self.log.term_at(index) == self.term(index), index
        assert self.log.last_term == self.term(self.last)

    @invariant()
    def same_rooms(self) -> None:
        pending = [entry for entry in self.entries if entry.index > self.commit]
        assert self.log.pending == len(pending)
        assert self.log.pending_bytes == sum(map(size_of, pending))
        assert self.log.room == self.log.capacity - len(self.entries)

    @invariant()
    def nothing_forgotten_is_held(self) -> None:
        """Removed payloads are not referenced any more."""
        assert sum(e is not None for e in self.log._ring) == len(self.entries)
        self.longest = max(self.longest, len(self.entries))
        assert len(self.log._ring) <= max(self.log.capacity, self.longest) * 9 // 8 + 16

    @invariant()
    def hints_are_those_of_a_scan(self) -> None:
        for index in range(self.first - 1, self.last + 2):
            for term in range(self.log.last_term + 2):
                upto = min(index, self.last)
                fits = [e for e in self.entries if e.index <= upto and e.term <= term]
                found = self.log.last_index_with_term_up_to(index, term)
                if fits:
                    assert found == (fits[-1].index, fits[-1].term)
                else:
                    at = min(upto, self.first - 1)
                    assert found == (at, self.term(at) or 0)

    @invariant()
    def batches_keep_both_limits(self) -> None:
        for start in range(self.first, self.last + 1):
            rest = self.entries[start - self.first :]
            for entries_max, bytes_max in ((1, 1000), (3, 60), (100, 1), (100, 1000)):
                found, total = self.log.slice_within(
                    start, entries_max=entries_max, bytes_max=bytes_max
                )
                count = len(found)
                assert found == tuple(rest[:count])
                assert total == sum(map(size_of, found))
                assert 1 <= count <= entries_max
                assert count == 1 or sum(map(size_of, found)) <= bytes_max
                if count < min(entries_max, len(rest)):
                    assert sum(map(size_of, rest[: count + 1])) > bytes_max


LogModel.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestLogAgainstList = LogModel.TestCase


# ------------------------------------------------------------ capacity


@pytest.mark.parametrize(
    ("count", "pending", "ratio", "kept", "capacity"),
    [
        (50_000, 5_000, 0.1, 5_000, 60_000),  # MicroRaft's settings, and its number of slots
        (10_000, 5_000, 0.1, 1_000, 16_000),
        (1_000, 200, 0.1, 100, 1_300),
        (1_000, 200, 0.5, 500, 1_700),
        (4, 3, 0.1, 1, 8),  # at least one entry is kept
        (4, 3, 0.0, 1, 8),
        (10, 1, 1.0, 10, 21),
    ],
)
def test_capacity_is_the_sum_of_the_three_sections(
    count: int, pending: int, ratio: float, kept: int, capacity: int
) -> None:
    config = RaftConfig(
        commit_count_to_take_snapshot=count, pending_entries_max=pending, snapshot_keep_ratio=ratio
    )
    assert config.kept_entries == kept
    assert config.log_capacity == capacity


def test_the_size_of_an_entry_includes_its_overhead() -> None:
    log = RaftLog(4)
    log.append(entry_at(1, 1, size=100))
    assert log.pending_bytes == 100 + ENTRY_OVERHEAD_BYTES


def test_a_gap_and_a_falling_term_are_assertion_errors() -> None:
    log = RaftLog(4)
    log.append(entry_at(1, 3))
    with pytest.raises(AssertionError):
        log.append(entry_at(3, 3))
    with pytest.raises(AssertionError):
        log.append(entry_at(2, 2))
    log.commit_to(1)
    with pytest.raises(AssertionError):
        log.truncate_from(1)
    with pytest.raises(AssertionError):
        log.truncate_until(1)  # no snapshot covers it


# ------------------------------------------------------------ entries kept after a snapshot


def grown(*voters: int, ratio: float, lag_at: int) -> Cluster:
    """A leader with 1,000 entries and a snapshot at 1,000; node 3 has entries up to `lag_at`."""
    config = RaftConfig(
        commit_count_to_take_snapshot=1_000, pending_entries_max=200, snapshot_keep_ratio=ratio
    )
    cluster = Cluster(config, *(voters or (1, 2, 3)))
    if lag_at == 0:
        cluster.cut(1, 3)
    leader = cluster.elect(1)
    while leader.log.last < 1_000:
        if leader.log.last >= lag_at:
            cluster.cut(1, 3)
        leader.propose(b"x")
        if leader.log.last % 100 == 0 or leader.log.last == lag_at:
            cluster.settle()
    cluster.settle()
    assert {node.log.snapshot_index for node in (leader, cluster.nodes[2])} == {1_000}
    return cluster


def test_a_follower_keeps_the_ratio_of_the_rule() -> None:
    """The rule of the article, 0.1 * 1,000, keeps 100 entries (from 4,900 at index 5,000)."""
    cluster = grown(ratio=0.1, lag_at=1_000)
    assert cluster.nodes[2].log.first == 901


def test_a_ratio_of_half_keeps_the_entries_of_the_example() -> None:
    """The article's example keeps 500 entries (from 4,500 at index 5,000); by the rule the ratio is
    0.5."""
    cluster = grown(ratio=0.5, lag_at=1_000)
    assert cluster.nodes[2].log.first == 501


@pytest.mark.parametrize(
    ("ratio", "lag_at", "first"),
    [
        (0.1, 950, 951),  # within the ratio: only the entries that it needs are kept
        (0.1, 900, 901),  # at the limit of the ratio
        (0.1, 899, 1_001),  # beyond the ratio: it gets the snapshot, and no entry is kept for it
        (0.5, 500, 501),  # as the follower in the article, at 4,500 of 5,000
        (0.5, 499, 1_001),
    ],
)
def test_a_leader_keeps_entries_that_lagging_members_need(
    ratio: float, lag_at: int, first: int
) -> None:
    cluster = grown(ratio=ratio, lag_at=lag_at)
    assert cluster.nodes[1].log.first == first


def test_a_leader_keeps_no_entries_if_no_member_lags() -> None:
    """A group of two; the follower has all committed entries."""
    cluster = grown(1, 2, ratio=0.1, lag_at=1_000)
    assert cluster.nodes[1].log.first == 1_001
    assert cluster.nodes[2].log.first == 901


def test_a_leader_keeps_the_ratio_for_a_member_that_never_replied() -> None:
    cluster = grown(ratio=0.1, lag_at=0)
    assert cluster.nodes[1].log.first == 901
