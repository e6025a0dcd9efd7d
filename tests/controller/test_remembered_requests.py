"""A request takes effect once, however late it is repeated."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.controller import remembered_requests
from bascule.controller.metadata_machine import MetadataMachine
from bascule.controller.remembered_requests import ENTRIES_KEPT, RememberedRequests
from bascule.metadata.command_codec import (
    SNAPSHOT_VERSION,
    RequestId,
    decode_commands,
    encode_commands,
)
from bascule.metadata.commands import SetClusterId
from bascule.metadata.image import Image
from bascule.raft.messages import Entry, RaftSnapshot

KEPT = 10
"""Instead of ENTRIES_KEPT, so that a history of some entries forgets."""


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, RequestId, bool]]:
    """Index, request, and whether a snapshot is restored before; indexes have gaps, since other
    entries come between. Some requests are repeated, some have no id."""
    index, history, drawn = 0, [], list[RequestId]()
    for _ in range(draw(st.integers(0, 40))):
        index += draw(st.integers(1, 4))
        kind = draw(st.sampled_from(["new", "again", "none"]))
        if kind == "again" and drawn:
            request = draw(st.sampled_from(drawn))
        elif kind == "none":
            request = RequestId(b"", 0)
        else:
            seen = max(index - draw(st.integers(1, 15)), 0)  # the sender's log may be behind
            request = RequestId(b"%d" % len(drawn), seen + KEPT)
            drawn.append(request)
        history.append((index, request, draw(st.booleans())))
    return history


@given(histories())
def test_no_request_has_two_effects_whatever_is_forgotten(
    history: list[tuple[int, RequestId, bool]],
) -> None:
    live, restored = RememberedRequests(), RememberedRequests()
    done: set[bytes] = set()
    before = 0
    for index, request, is_restored in history:
        if is_restored:
            snapshot, restored = restored.snapshot(), RememberedRequests()
            restored.restore(snapshot, before)
        expected = not request.id or (request.id not in done and index <= request.last_index)
        assert live.accepts(request, index) == expected
        assert restored.accepts(request, index) == expected
        assert live.snapshot() == restored.snapshot(), "all nodes remember the same"
        if request.id and expected:
            done.add(request.id)
        # In the order of the log, so that one with a far last index keeps those behind it.
        assert len(live) <= 2 * KEPT + 5
        before = index


def test_ids_of_an_earlier_release_are_remembered_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_requests, "ENTRIES_KEPT", KEPT)
    requests = RememberedRequests()
    request = RequestId(b"r", 0)
    assert requests.accepts(request, 5)
    assert not requests.accepts(request, 5 + KEPT)
    assert request.id not in requests, "it was drawn when nothing was refused"
    requests.restore([request], 20)
    assert not requests.accepts(request, 20 + KEPT)


def entry(index: int, payload: bytes) -> Entry:
    return Entry(index=index, term=1, kind=0, payload=payload)  # type: ignore[arg-type]


def test_a_late_entry_changes_nothing() -> None:
    machine = MetadataMachine(lambda *_: None)
    command = SetClusterId("late")
    machine.apply([entry(8, encode_commands([command], version=1, request=RequestId(b"r", 7)))])
    assert machine.image == Image()
    assert not machine.has_done(b"r")
    machine.apply([entry(9, encode_commands([command], version=1, request=RequestId(b"s", 9)))])
    assert machine.image.cluster_id == "late"


def test_entries_and_snapshots_of_an_earlier_release_are_read() -> None:
    command = SetClusterId("c")
    (kind, fields) = (9, msgspec.Raw(msgspec.msgpack.encode(command)))
    payload = msgspec.msgpack.encode([b"r" * 16, [[kind, fields]]])
    assert decode_commands(payload) == (RequestId(b"r" * 16, 0), [command])
    machine = MetadataMachine(lambda *_: None)
    machine.apply([entry(1, payload)])
    assert machine.has_done(b"r" * 16)
    chunk = msgspec.msgpack.encode({"version": SNAPSHOT_VERSION, "requests": [b"x", b"y"]})
    members = None
    snapshot = RaftSnapshot(30, 1, members, (chunk,))  # type: ignore[arg-type]
    asyncio.run(machine.restore(snapshot))
    assert machine.has_done(b"x")
    assert not machine.has_done(b"r" * 16)
    late = encode_commands([command], version=1, request=RequestId(b"y", 0))
    machine.apply([entry(30 + ENTRIES_KEPT, late)])
    assert machine.image.cluster_id == ""
