"""IdentifiedRequest ids in a state machine: a proposal with an unknown outcome may be repeated.

A proposal that was answered with Indeterminate may be committed or not, and repeating it as it is
may apply it twice. `encode_request` puts an id and a last index before the payload.
`IdempotentMachine` applies each id once: a repetition gets the result of the first one. The ids are
part of the snapshot, so all members, and a node that was restored, agree.

::

    entry:     [id, last index, payload]    in MessagePack
    snapshot:  chunk 0: [[id, last index, result], ...], then the chunks of the inner machine

An id is forgotten some time after the log has passed its last index. Behind that index an entry
with that id is refused and changes nothing (`Expired`). So a repetition is never applied twice,
however late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

import msgspec

from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft_driver.state_machine import FrozenChunks, StateMachine

ENTRIES_KEPT: Final = 100_000
"""Default number of entries for which an id is remembered: at a thousand a second, 100 s."""


class IdentifiedRequest(msgspec.Struct, frozen=True, array_like=True):
    """The payload of an entry with a request id."""

    id: bytes
    """Unique; the same in each repetition."""
    last_index: int
    """The last log index at which it may be applied; the same in each repetition."""
    payload: bytes


class Expired(msgspec.Struct, frozen=True):
    """The result of a request behind its last index: it was not applied by this entry. Whether an
    earlier one with the same id was applied is no longer known."""

    last_index: int


class RememberedRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that was applied."""

    id: bytes
    last_index: int
    result: Any


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_request: Final = msgspec.msgpack.Decoder(IdentifiedRequest).decode
_decode_table: Final = msgspec.msgpack.Decoder(tuple[RememberedRequest, ...]).decode


def encode_request(
    request_id: bytes, payload: bytes, *, applied: int, entries_kept: int = ENTRIES_KEPT
) -> bytes:
    """The payload for `RaftGroup.propose`. Propose the same bytes to repeat the request.

    `applied` is `RaftGroup.applied` before the first attempt.
    """
    return _encode(IdentifiedRequest(request_id, applied + entries_kept, payload))


class IdempotentMachine:
    """A `StateMachine` around another one, whose entries all come from `encode_request`.

    The results of the inner machine are values that MessagePack encodes and decodes unchanged
    (numbers, text, bytes, lists, maps), since a repetition may get one out of a snapshot.
    """

    def __init__(self, inner: StateMachine) -> None:
        self.inner = inner
        self._requests: dict[bytes, RememberedRequest] = {}
        """By id, in the order in which they were applied."""

    def __len__(self) -> int:
        """Requests that are remembered."""
        return len(self._requests)

    def apply(self, entries: Sequence[Entry]) -> list[Any]:
        results: list[Any] = []
        waiting: list[Entry] = []
        """Entries with the inner payload that were not passed on yet."""
        places: list[tuple[int, IdentifiedRequest]] = []
        """For each of them: its place in `results`, and its request."""

        def pass_on() -> None:
            if waiting:
                found = self.inner.apply(waiting)
                for (place, request), result in zip(places, found, strict=True):
                    results[place] = result
                    self._requests[request.id] = RememberedRequest(
                        request.id, request.last_index, result
                    )
                waiting.clear()
                places.clear()

        batch: set[bytes] = set()
        for entry in entries:
            request = _decode_request(entry.payload)
            if request.id in batch:
                pass_on()  # a repetition within one call
                batch.clear()
            known = self._requests.get(request.id)
            if entry.index > request.last_index:
                results.append(Expired(request.last_index))
            elif known is not None:
                results.append(known.result)
            else:
                places.append((len(results), request))
                results.append(None)
                waiting.append(Entry(entry.index, entry.term, entry.kind, request.payload))
                batch.add(request.id)
        pass_on()
        self._forget(entries[-1].index if entries else 0)
        return results

    def _forget(self, index: int) -> None:
        """Forget the oldest requests that may not be applied behind `index`, the last entry's.

        Snapshots are equal although members divide the entries differently into calls: the last
        call decides what is left, and its last entry is the same.
        """
        requests = self._requests
        while requests:
            oldest = next(iter(requests.values()))
            if oldest.last_index >= index:
                return
            del requests[oldest.id]

    def take_snapshot(self) -> Iterable[bytes] | FrozenChunks:
        table = _encode(tuple(self._requests.values()))
        chunks = self.inner.take_snapshot()
        if isinstance(chunks, list | tuple):
            return [table, *chunks]
        if isinstance(chunks, FrozenChunks):
            return FrozenChunks(_after(table, chunks.chunks))
        return _after(table, chunks)

    def restore(self, snapshot: RaftSnapshot) -> Awaitable[None] | None:
        self._requests = {found.id: found for found in _decode_table(snapshot.chunks[0])}
        inner = RaftSnapshot(snapshot.index, snapshot.term, snapshot.members, snapshot.chunks[1:])
        return self.inner.restore(inner)


def _after(first: bytes, rest: Iterable[bytes]) -> Iterable[bytes]:
    yield first
    yield from rest
