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
from bascule.announce.founders import FounderAgreement
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.announcements import (
    Announcement,
    decode_announcement,
    decode_claims,
    encode_announcement,
)
from bascule.wire.founding import (
    Founder,
    FounderAnnouncement,
    FoundingSet,
    KeptPromise,
    decode_founder,
    encode_founder,
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


def run_founders(data: bytes) -> None:
    """Each line is heard by a founder. Its rounds rise, it promises itself only to sets with itself
    and all numbers, and decides only on what it has promised."""
    me = Founder(1, "0" * 16, "one:1")
    agreement = FounderAgreement(me, KeptPromise(me.directory), expect=3, now_ms=0)
    for now_ms, line in enumerate(data.split(b"\n")):
        said = decode_founder(line)
        if said is None:
            continue
        assert decode_founder(encode_founder(said)) == said
        agreement.on_announcement(said, now_ms)
        before, wanted = agreement.kept, agreement.wanted(now_ms)
        assert all(agreement.waits_for(now_ms))
        if isinstance(wanted, KeptPromise):
            assert wanted.promise is not None
            assert [each.node_id for each in wanted.promise.founders] == [1, 2, 3]
            assert me in wanted.promise.founders
            if wanted.decided:
                assert wanted.promise == before.promise
            elif before.promise is not None:
                assert wanted.promise.round > before.promise.round
            agreement.on_kept(wanted)
            assert decode_founder(encode_founder(agreement.announcement(now_ms))) is not None


def _founder_seeds() -> list[bytes]:
    """Two others that are there, that promise, that promise something else, and that decide."""
    one, two, three = (Founder(n, f"{n - 1:016x}", f"{name}:1") for n, name in enumerate(
        ("one", "two", "three"), 1
    ))  # fmt: skip
    first, second = FoundingSet(1, (one, two, three)), FoundingSet(2, (one, two, three))
    lines = [
        encode_founder(
            FounderAnnouncement(expect=3, age_ms=5, founder=who, promise=promise, decided=decided)
        )
        for promise, decided in ((None, False), (first, False), (second, False), (second, True))
        for who in (two, three)
    ]
    return [b"\n".join(lines), b"\n".join(lines[:4]), *lines]


TARGETS = [
    Target("announcements", _seeds, run_announcements),
    Target("founders", _founder_seeds, run_founders),
]
