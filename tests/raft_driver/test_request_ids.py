"""Requests with ids: applied once, however often and however late they are repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bascule.raft.membership import Members
from bascule.raft.messages import Entry, EntryKind, RaftSnapshot
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import RaftDriver
from bascule.raft_driver.request_ids import Expired, IdempotentMachine, encode_request
from bascule.raft_driver.state_machine import FrozenChunks
from raft_driver.test_driver import run_with_driver


class Words:
    """The payloads in the order in which they were applied; the result is their number."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.words: list[bytes] = []
        self.frozen = frozen

    def apply(self, entries: Sequence[Entry]) -> list[int]:
        before = len(self.words)
        self.words += [entry.payload for entry in entries]
        return list(range(before + 1, len(self.words) + 1))

    def take_snapshot(self) -> Iterable[bytes] | FrozenChunks:
        words = tuple(self.words)
        return FrozenChunks(iter(words)) if self.frozen else words

    def restore(self, snapshot: RaftSnapshot) -> None:
        self.words = list(snapshot.chunks)


def chunks_of(machine: IdempotentMachine) -> tuple[bytes, ...]:
    found = machine.take_snapshot()
    return tuple(found.chunks if isinstance(found, FrozenChunks) else found)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Entries with few ids, each with one payload and one last index, and gaps in between, where
    entries are that no state machine gets."""
    last = {number: draw(st.integers(1, 40)) for number in range(6)}
    entries, index = [], 0
    for number in draw(st.lists(st.integers(0, 5), max_size=40)):
        index += draw(st.sampled_from((1, 1, 1, 2)))
        payload = encode_request(
            b"%d" % number, b"p%d" % number, applied=0, entries_kept=last[number]
        )
        entries.append(Entry(index, 1, EntryKind.NORMAL, payload))
    return entries


def expected(entries: Sequence[Entry]) -> tuple[list[object], list[bytes]]:
    """(results, words) by the definition, with a memory that forgets nothing."""
    seen: dict[bytes, int] = {}
    results: list[object] = []
    words: list[bytes] = []
    for entry in entries:
        request_id, last_index, payload = msgspec.msgpack.decode(entry.payload)
        if entry.index > last_index:
            results.append(Expired(last_index))
            continue
        if request_id not in seen:
            words.append(payload)
            seen[request_id] = len(words)
        results.append(seen[request_id])
    return results, words


@given(logs(), st.lists(st.integers(1, 7), min_size=40, max_size=40), st.booleans(), st.booleans())
def test_each_id_is_applied_once(
    entries: list[Entry], sizes: list[int], restores: bool, frozen: bool
) -> None:
    """With the entries divided in any way into calls, and restored from snapshots in between."""
    inner = Words(frozen=frozen)
    machine = IdempotentMachine(inner)
    at_once = IdempotentMachine(Words(frozen=frozen))
    results: list[object] = []
    left = list(entries)
    for size in sizes:
        if not left:
            break
        part, left = left[:size], left[size:]
        results += machine.apply(part)
        at_once.apply(part[:1])
        at_once.apply(part[1:])
        assert chunks_of(machine) == chunks_of(at_once)
        if restores:
            chunks = chunks_of(machine)
            inner = Words(frozen=frozen)
            machine = IdempotentMachine(inner)
            assert machine.restore(RaftSnapshot(part[-1].index, 1, Members.of(1), chunks)) is None
            assert chunks_of(machine) == chunks
    assert (results, inner.words) == expected(entries[: len(results)])


def test_ids_are_forgotten() -> None:
    machine = IdempotentMachine(Words())
    for index in range(1, 1_001):
        payload = encode_request(b"%d" % index, b"x", applied=index - 1, entries_kept=10)
        machine.apply([Entry(index, 1, EntryKind.NORMAL, payload)])
    assert len(machine) <= 11


def test_a_repetition_has_the_first_result() -> None:
    async def scene(driver: RaftDriver) -> None:
        words = Words()
        group = await driver.open_group(
            7, IdempotentMachine(words), initial_members=Members.of(1), store=MemoryStore()
        )
        await group.wait_leader()
        request = encode_request(b"id", b"once", applied=group.applied)
        first = await group.propose(request)
        await group.propose(encode_request(b"other", b"other", applied=group.applied))
        again = await group.propose(request)
        assert (first.result, again.result) == (1, 1)
        assert again.index > first.index
        assert words.words == [b"once", b"other"]

    run_with_driver(scene)
