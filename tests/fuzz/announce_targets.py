"""Announcements, which anybody may publish who reaches the NATS server."""

from __future__ import annotations

import msgspec

from bascule.announce.exchange import (
    MS,
    Announce,
    AnnouncementExchange,
    AnnouncingNode,
    Effect,
)
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.announcements import (
    Announcement,
    decode_announcement,
    decode_claims,
    encode_announcement,
)
from fuzz.target import Target

STREAMS = {
    name: StreamDefinition(name, name.encode() * 16, 0, StreamConfig(f"{name}.>"))
    for name in ("a", "b")
}
OWN_RUN = "00000000000000aa"


def node(cluster: str, run: str) -> AnnouncementExchange:
    exchange = AnnouncementExchange(AnnouncingNode(cluster, 1, run, 1_000))
    exchange.on_streams(STREAMS, now_ns=0)
    exchange.on_connected(now_ns=0, payload_bytes_max=1 << 20)
    return exchange


def run_announcements(data: bytes) -> None:
    """Each line is heard. What is unreadable is counted, what is sent is readable, and in the end
    everybody is gone."""
    exchange = node("ours", OWN_RUN)
    effects: list[Effect] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        effects += exchange.on_message(line, now_ns=10 * MS * number)
        effects += exchange.on_time(10 * MS * number)
        found = decode_announcement(line)
        if isinstance(found, Announcement):
            assert decode_announcement(encode_announcement(found)) == found
            decode_claims(found)
    assert exchange.counts.received == len(lines)
    assert exchange.conflicts().keys() <= STREAMS.keys()
    hours = 4 * 3_600_000 * MS
    effects += exchange.on_time(hours)
    assert exchange.conflicts() == {}
    assert exchange.counts.nodes == 0
    assert exchange.next_due_ns() > hours
    for effect in effects:
        if isinstance(effect, Announce):
            sent = decode_announcement(effect.data)
            assert isinstance(sent, Announcement)
            assert sent.run == OWN_RUN


def _seeds() -> list[bytes]:
    """Another node's announcements of every kind, and those that ask this one."""
    other = node("theirs", "00000000000000bb")
    (alive,) = (each.data for each in other.on_time(10**12) if isinstance(each, Announce))
    found = decode_announcement(alive)
    assert isinstance(found, Announcement)
    request = msgspec.structs.replace(found, kind="request", target=found.run)
    other.on_message(
        encode_announcement(msgspec.structs.replace(request, run=OWN_RUN)), now_ns=10**12
    )
    listed = [e.data for e in other.on_time(2 * 10**12) if isinstance(e, Announce)]
    other.on_streams({"a": STREAMS["a"]}, now_ns=2 * 10**12)
    changed = [e.data for e in other.on_time(3 * 10**12) if isinstance(e, Announce)]
    stopped = [e.data for e in other.on_stopping() if isinstance(e, Announce)]
    asked = encode_announcement(msgspec.structs.replace(request, target=OWN_RUN))
    asking = encode_announcement(msgspec.structs.replace(found, asking=True))
    every = [asking, *listed, asked, *changed, *stopped]
    assert len(every) >= 6
    return [b"\n".join(every), b"\n".join(every[:3]), *every]


TARGETS = [Target("announcements", _seeds, run_announcements)]
