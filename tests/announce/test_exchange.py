"""Nodes that exchange announcements, over a network that may lose some, under virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.announce.exchange import (
    DELAY_NS,
    LIST_SPACING_NS,
    MS,
    NODES_MAX,
    UNASKED_INTERVALS,
    Announce,
    AnnouncementExchange,
    AnnouncingNode,
    ConflictBegan,
    ConflictEnded,
    Effect,
    NodeFound,
    NodeLost,
)
from bascule.announce.remote_node import STREAMS_MAX
from bascule.model import PartitionBy, StreamConfig, StreamDefinition
from bascule.wire.announcements import (
    ANNOUNCEMENT_BYTES_MAX,
    Announcement,
    decode_announcement,
    encode_announcement,
)
from bascule.wire.subjects import subjects_overlap

INTERVAL_MS = 10_000
INTERVAL_NS = INTERVAL_MS * MS


def stream(
    name: str, subject: str = "", *, number: int = 0, **settings: object
) -> StreamDefinition:
    config = StreamConfig(subject=subject or f"{name}.>", **settings)  # type: ignore[arg-type]
    return StreamDefinition(name, number.to_bytes(16, "big"), 0, config)


class Peer:
    """One node of the world."""

    def __init__(self, cluster: str, node: int, run: int) -> None:
        self.cluster, self.node = cluster, node
        self.exchange = AnnouncementExchange(
            AnnouncingNode(cluster, node, f"{run:016x}", INTERVAL_MS)
        )
        self.streams: dict[str, StreamDefinition] = {}
        self.events: list[Effect] = []
        self.sent: list[Announcement] = []
        self.is_connected = False

    def conflicts(self) -> dict[str, list[str]]:
        found = self.exchange.conflicts()
        return {name: [each.cluster_id for each in streams] for name, streams in found.items()}

    def logged(self, *kinds: type) -> list[Effect]:
        return [event for event in self.events if isinstance(event, kinds)]


class World:
    """Peers on one NATS. What is published arrives at once, unless `loses` says that it is lost."""

    def __init__(self, *, payload_bytes_max: int = 1 << 20) -> None:
        self.now_ns = 0
        self.peers: list[Peer] = []
        self.runs = 0
        self.sets = 0
        """Half of them tell all streams, the others the changed ones; both must be the same."""
        self.payload_bytes_max = payload_bytes_max
        self.loses: Callable[[Announcement], bool] = lambda _: False

    def join(self, cluster: str, *streams: StreamDefinition, node: int = 1) -> Peer:
        # Spread over the range of delays.
        self.runs += 1
        peer = Peer(cluster, node, run=(self.runs * 37 % 200 << 48) + self.runs)
        self.peers.append(peer)
        self.set(peer, *streams)
        self.connect(peer)
        return peer

    def connect(self, peer: Peer) -> None:
        peer.is_connected = True
        self.carry_out(
            peer,
            peer.exchange.on_connected(
                now_ns=self.now_ns, payload_bytes_max=self.payload_bytes_max
            ),
        )

    def set(self, peer: Peer, *streams: StreamDefinition) -> None:
        before, peer.streams = peer.streams, {each.name: each for each in streams}
        self.sets += 1
        if self.sets % 2:
            effects = peer.exchange.on_streams(peer.streams, now_ns=self.now_ns)
        else:
            changes = {name: peer.streams.get(name) for name in {**before, **peer.streams}}
            effects = peer.exchange.on_changed(changes, now_ns=self.now_ns)
        self.carry_out(peer, effects)

    def stop(self, peer: Peer, *, says_so: bool = True) -> None:
        if says_so:
            self.carry_out(peer, peer.exchange.on_stopping())
        self.peers.remove(peer)

    def run(self, seconds: float) -> None:
        end_ns = self.now_ns + int(seconds * 1e9)
        while True:
            due = [
                (p.exchange.next_due_ns(), i) for i, p in enumerate(self.peers) if p.is_connected
            ]
            if not due or min(due)[0] > end_ns:
                break
            at_ns, index = min(due)
            self.now_ns = max(self.now_ns, at_ns)
            peer = self.peers[index]
            self.carry_out(peer, peer.exchange.on_time(self.now_ns))
        self.now_ns = end_ns

    def carry_out(self, sender: Peer, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Announce):
                sender.events.append(effect)
                continue
            found = decode_announcement(effect.data)
            assert isinstance(found, Announcement)
            assert len(effect.data) <= min(self.payload_bytes_max, ANNOUNCEMENT_BYTES_MAX)
            sender.sent.append(found)
            for peer in self.peers:
                if peer is sender or not (sender.is_connected and peer.is_connected):
                    continue
                if not self.loses(found):
                    answer = peer.exchange.on_message(effect.data, now_ns=self.now_ns)
                    self.carry_out(peer, answer)

    def expected(self, peer: Peer) -> dict[str, list[str]]:
        """The conflicts of a peer, by comparing everything with everything."""
        found: dict[str, set[str]] = {}
        for other in self.peers:
            is_sibling = other.cluster == peer.cluster and other.node != peer.node
            for name, own in peer.streams.items():
                its = other.streams.get(name)
                if other is peer or is_sibling or its is None or own.config.shared:
                    continue
                in_one_group = own.queue_group is not None and own.queue_group == its.queue_group
                if (in_one_group or (own.config.acks and its.config.acks)) and subjects_overlap(
                    own.config.subject, its.config.subject
                ):
                    found.setdefault(name, set()).add(other.cluster)
        return {name: sorted(clusters) for name, clusters in found.items()}


def test_the_same_stream_in_two_clusters_is_a_conflict_for_both() -> None:
    world = World()
    a = world.join("a", stream("orders"), stream("mine"))
    world.run(60)
    assert not a.events
    b = world.join("b", stream("orders", "orders.*"), stream("theirs"))
    world.run(1)
    assert a.conflicts() == {"orders": ["b"]}
    assert b.conflicts() == {"orders": ["a"]}
    assert a.events == [NodeFound("b", 1), ConflictBegan("b", (1,), ("orders",))]
    (found,) = a.exchange.duplicates("orders")
    assert (found.subject, found.acks, found.shared, found.nodes) == ("orders.*", True, False, (1,))
    assert a.exchange.duplicates("mine") == ()
    world.run(300)
    assert len(a.logged(ConflictBegan)) == len(b.logged(ConflictBegan)) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "is_conflict"),
    [
        (stream("s", "s.>"), stream("s", "s.a"), True),
        (stream("s", "s.>"), stream("s", "t.>"), False),
        (stream("s", "s.>"), stream("t", "s.>"), False),
        (stream("s", acks=False), stream("s"), False),
        (stream("s"), stream("s", acks=False), False),
        (stream("s", shared=True), stream("s"), False),
        (stream("s"), stream("s", shared=True), True),
        # NATS gives each message to one member of a group: both streams are incomplete.
        (stream("s", group="g", acks=False), stream("s", group="g"), True),
        (stream("s", group="g", acks=False), stream("s", group="h"), False),
        (stream("s", partitions=2, acks=False), stream("s", partitions=3), True),
        (
            stream("s", partitions=2, acks=False),
            stream("s", partitions=3, partition_by=PartitionBy.KEY),
            False,
        ),
    ],
)
def test_what_is_a_conflict(
    ours: StreamDefinition, theirs: StreamDefinition, is_conflict: bool
) -> None:
    world = World()
    a, _ = world.join("a", ours), world.join("b", theirs)
    world.run(2)
    assert (a.conflicts() != {}) is is_conflict
    assert world.expected(a) == a.conflicts()


def test_an_expected_duplicate_is_known_nevertheless() -> None:
    world = World()
    a, b = world.join("a", stream("s", shared=True)), world.join("b", stream("s"))
    world.run(2)
    (found,) = a.exchange.duplicates("s")
    assert (found.cluster_id, found.conflict) == ("b", False)
    assert not a.logged(ConflictBegan)
    assert b.conflicts() == {"s": ["a"]}
    assert b.exchange.duplicates("s")[0].shared


def test_nodes_of_one_cluster_do_not_conflict() -> None:
    world = World()
    a = world.join("a", stream("s"), node=1)
    b = world.join("a", stream("s"), node=2)
    other = world.join("o", stream("s"), node=1)
    world.run(2)
    assert a.conflicts() == b.conflicts() == {"s": ["o"]}
    assert other.conflicts() == {"s": ["a"]}
    assert other.exchange.duplicates("s")[0].nodes == (1, 2)
    world.stop(b)
    assert other.conflicts() == {"s": ["a"]}
    world.stop(a)
    assert other.conflicts() == {}
    assert len(other.logged(ConflictBegan)) == len(other.logged(ConflictEnded)) == 1


def test_a_copy_of_a_data_directory_is_another_cluster() -> None:
    world = World()
    a, copy = world.join("a", stream("s")), world.join("a", stream("s"))
    world.run(2)
    assert a.conflicts() == copy.conflicts() == {"s": ["a"]}


def test_a_conflict_begins_and_ends_with_what_changes() -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b")
    world.run(2)
    changes: list[tuple[Peer, tuple[StreamDefinition, ...], bool]] = [
        (b, (stream("s"),), True),
        (b, (), False),
        (b, (stream("s", number=2),), True),
        (a, (), False),
        (a, (stream("s"), stream("t")), True),
        (a, (stream("s", shared=True), stream("t")), False),
        (a, (stream("s", acks=False), stream("t")), False),
        (a, (stream("s"), stream("t")), True),
        (b, (stream("s", acks=False),), False),
        (b, (stream("s"), stream("t")), True),
    ]
    for peer, streams, is_conflict in changes:
        world.set(peer, *streams)
        world.run(1)
        assert ("s" in a.conflicts()) is is_conflict, streams
        assert a.conflicts() == world.expected(a)
    assert a.conflicts() == {"s": ["b"], "t": ["b"]}
    # b's own view had other moments, and agrees at the end.
    assert b.conflicts() == {"s": ["a"], "t": ["a"]}


def test_a_node_that_stops_or_is_not_heard_of_is_gone() -> None:
    world = World()
    a = world.join("a", stream("s"))
    b = world.join("b", stream("s"))
    world.run(2)
    world.stop(b)
    assert a.events[-2:] == [
        NodeLost("b", 1, "the node of that cluster stopped"),
        ConflictEnded("b", ("s",), "the node of that cluster stopped"),
    ]
    c = world.join("c", stream("s"))
    world.run(2)
    assert a.conflicts() == {"s": ["c"]}
    world.stop(c, says_so=False)
    world.run(2 * INTERVAL_MS / 1_000)
    assert a.conflicts() == {"s": ["c"]}
    world.run(INTERVAL_MS / 1_000)
    assert a.conflicts() == {}
    assert isinstance(a.events[-1], ConflictEnded)
    assert a.events[-1].reason == "not heard of for 30 s"


def test_a_node_without_a_connection_misses_nobody() -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b", stream("s"))
    world.run(2)
    a.is_connected = False
    world.run(10 * INTERVAL_MS / 1_000)
    assert b.conflicts() == {}
    world.connect(a)
    assert a.conflicts() == {"s": ["b"]}
    world.run(2)
    assert a.conflicts() == {"s": ["b"]}
    assert b.conflicts() == {"s": ["a"]}
    assert len(a.logged(ConflictBegan)) == 1


def test_a_node_that_may_not_publish_learns_from_changes_and_from_lists_for_others() -> None:
    world = World()
    mute = world.join("mute", stream("s"), stream("t"))
    world.loses = lambda found: found.cluster == "mute"
    b = world.join("b", stream("t"))
    world.run(2)
    assert mute.conflicts() == {}
    world.set(b, stream("t"), stream("s"))
    world.run(2)
    assert mute.conflicts() == {"s": ["b"]}
    world.join("c")
    world.run(2)
    assert mute.conflicts() == {"s": ["b"], "t": ["b"]}


def test_a_node_that_hears_nobody_is_heard() -> None:
    world = World()
    deaf = world.join("deaf", stream("s"))
    hear = deaf.exchange.on_message
    deaf.exchange.on_message = lambda data, now_ns: []  # type: ignore[method-assign]
    deaf.exchange.on_hearing(is_deaf=True, now_ns=world.now_ns)
    b = world.join("b", stream("s"))
    world.run(2)
    assert b.conflicts() == {"s": ["deaf"]}
    late = world.join("late", stream("s"))
    world.run(UNASKED_INTERVALS * INTERVAL_MS / 1_000 + 1)
    assert late.conflicts() == {"s": ["b", "deaf"]}
    assert deaf.conflicts() == {}
    assert [each.kind for each in deaf.sent].count("list") == 2
    deaf.exchange.on_message = hear  # type: ignore[method-assign]
    deaf.exchange.on_hearing(is_deaf=False, now_ns=world.now_ns)
    world.run(UNASKED_INTERVALS * INTERVAL_MS / 1_000 + 1)
    assert deaf.conflicts() == {"s": ["b", "late"]}
    deaf.sent.clear()
    world.run(2 * UNASKED_INTERVALS * INTERVAL_MS / 1_000)
    assert {each.kind for each in deaf.sent} == {"alive"}


def test_an_idle_node_sends_one_small_announcement_an_interval() -> None:
    world = World()
    peers = [world.join(f"c{i}", *(stream(f"s{i}-{j}") for j in range(50))) for i in range(5)]
    world.run(30)
    for peer in peers:
        peer.sent.clear()
    world.run(100 * INTERVAL_MS / 1_000)
    for peer in peers:
        assert {each.kind for each in peer.sent} == {"alive"}
        assert 99 <= len(peer.sent) <= 101
        assert max(len(encode_announcement(each)) for each in peer.sent) < 200


def test_one_list_answers_all_requests_and_lists_are_spaced() -> None:
    world = World()
    for number in range(20):
        world.join(f"c{number}", stream("s"))
    late = world.join("late", stream("s"))
    world.run(3)
    assert [each.kind for each in late.sent].count("list") == 1
    assert len(late.conflicts()["s"]) == 20
    late.sent.clear()
    for _ in range(200):
        for peer in world.peers[:5]:
            request = msgspec.structs.replace(
                peer.sent[0], kind="request", target=late.exchange._me.run, asking=False
            )
            world.carry_out(peer, [Announce(encode_announcement(request))])
        world.run(0.05)
    seconds = 10
    assert [each.kind for each in late.sent].count("list") <= seconds * 10**9 // LIST_SPACING_NS + 1


def test_one_change_announces_many_creations() -> None:
    world = World()
    a, b = world.join("a"), world.join("b", stream("s7"))
    world.run(2)
    a.sent.clear()
    made: list[StreamDefinition] = []
    for number in range(20):
        made.append(stream(f"s{number}"))
        world.set(a, *made)
    world.run(2 * DELAY_NS / 1e9)
    # It asks for b's list again, because it only kept the hash of s7.
    assert [each.kind for each in a.sent] == ["change", "request"]
    assert b.conflicts() == {"s7": ["a"]}


@pytest.mark.parametrize("payload_bytes_max", [1_000, 64 << 10, 1 << 20])
def test_five_thousand_streams(payload_bytes_max: int) -> None:
    world = World(payload_bytes_max=payload_bytes_max)
    a = world.join("a", *(stream(f"s{number}", number=number) for number in range(5_000)))
    b = world.join("b", stream("s17"), stream("s4999"), stream("none"))
    world.run(3)
    assert b.conflicts() == {"s17": ["a"], "s4999": ["a"]} == world.expected(b)
    assert a.conflicts() == {"s17": ["b"], "s4999": ["b"]}
    # A stream that is created later, with a name of which b only kept the hash.
    world.set(b, *b.streams.values(), stream("s2500"))
    world.run(3)
    assert b.conflicts() == world.expected(b)
    assert "s2500" in b.conflicts()
    # All at once: too large for one change.
    world.set(a, *(replace(each, id=b"x" * 16) for each in a.streams.values()))
    world.run(3)
    assert a.conflicts() == world.expected(a)
    assert b.conflicts() == world.expected(b)
    assert not any(a.exchange.counts.refused.values())


def test_a_stream_that_fits_no_announcement_is_counted() -> None:
    world = World(payload_bytes_max=600)
    a = world.join("a", stream("long", "x" * 500), stream("s"))
    b = world.join("b", stream("long", "x" * 500), stream("s"))
    world.run(3)
    assert b.conflicts() == {"s": ["a"]}
    assert a.exchange.counts.left_out == 1


def malformed(good: bytes) -> list[bytes]:
    return [
        b"",
        b"x",
        b"[" * 60_000,
        b"\xff\xfe",
        good[:-1],
        b" " * (ANNOUNCEMENT_BYTES_MAX + 1),
        good.replace(b'"v":1', b'"v":2'),
        good.replace(b'"v":1', b'"v":-1'),
        good.replace(b'"node":1', b'"node":-1'),
        good.replace(b'"alive"', b'"other"'),
        good.replace(b'"interval_ms":10000', b'"interval_ms":1'),
        b'{"v": 2, "kind": "new"}',
    ]


def test_unreadable_announcements_are_counted_and_change_nothing() -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b", stream("s"))
    world.run(2)
    good = encode_announcement(b.sent[0])
    received = a.exchange.counts.received
    for data in malformed(good):
        assert data != good
        assert a.exchange.on_message(data, now_ns=world.now_ns) == []
    counts = a.exchange.counts
    assert counts.received - received == len(malformed(good)) == sum(counts.refused.values())
    assert (counts.refused["too_large"], counts.refused["version"]) == (1, 2)
    assert a.conflicts() == {"s": ["b"]}


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    a = World().join("a", stream("s"))
    assert a.exchange.on_message(data, now_ns=0) == []
    assert sum(a.exchange.counts.refused.values()) == 1


@given(st.data())
def test_any_change_of_a_byte_is_survived(data: st.DataObject) -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b", stream("s"), stream("t"))
    world.run(2)
    text = bytearray(encode_announcement(data.draw(st.sampled_from(b.sent))))
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    world.carry_out(a, a.exchange.on_message(bytes(text), now_ns=world.now_ns))
    world.run(40)
    assert set(a.conflicts()) == {"s"}
    assert "b" in a.conflicts()["s"]


def test_the_nodes_that_are_remembered_are_bounded() -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b", stream("s"))
    world.run(2)
    for number in range(NODES_MAX + 10):
        stranger = msgspec.structs.replace(b.sent[0], cluster=f"x{number}", run=f"{number:015x}f")
        a.exchange.on_message(encode_announcement(stranger), now_ns=world.now_ns)
    assert a.exchange.counts.nodes == NODES_MAX
    assert a.exchange.counts.refused["limit"] == 11
    assert a.conflicts() == {"s": ["b"]}
    world.run(4 * INTERVAL_MS / 1_000)
    assert a.exchange.counts.nodes == 1


def test_the_streams_of_a_node_that_are_remembered_are_bounded() -> None:
    world = World()
    a, b = world.join("a", stream("s")), world.join("b", stream("s"))
    world.run(2)
    node = next(iter(a.exchange._nodes.values()))
    claim = b'{"name":"n%d","subject":"x","id":"' + b"0" * 32 + b'"}'
    pages = STREAMS_MAX // 500 + 2
    for page in range(pages):
        text = b",".join(claim % (500 * page + number) for number in range(500))
        listed = msgspec.structs.replace(
            b.sent[0], kind="list", asking=False, revision=9, page=page, pages=pages,
            streams=msgspec.Raw(b"[" + text + b"]"),
        )  # fmt: skip
        a.exchange.on_message(encode_announcement(listed), now_ns=world.now_ns)
    assert node.revision == 9
    assert len(node._hashes) == STREAMS_MAX


NAMES = ["s", "t", "u"]
definitions = st.builds(
    lambda name, subject, acks, shared, group: stream(
        name, subject, acks=acks, shared=shared, group=group
    ),
    st.sampled_from(NAMES),
    st.sampled_from(["x.>", "x.a", "y"]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, None, "g"]),
)
stream_sets = st.lists(definitions, max_size=3, unique_by=lambda each: each.name)
steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("sssscdkw"), stream_sets), max_size=15
)


@given(steps, st.integers(0, 1 << 30), st.sampled_from([0.0, 0.3, 0.8]))
def test_whatever_is_lost_every_node_learns_every_conflict(
    history: list[tuple[int, str, list[StreamDefinition]]], seed: int, loss: float
) -> None:
    """Announcements are lost while things happen. Later each node knows what comparing all
    streams of all nodes finds, and each conflict has begun once more often than it has ended."""
    dice = random.Random(seed)
    world = World(payload_bytes_max=dice.choice([700, 1 << 20]))
    world.loses = lambda _: dice.random() < loss
    clusters = ["a", "a", "b", "c"]
    peers = [world.join(each, node=i) for i, each in enumerate(clusters)]
    for index, what, streams in history:
        peer = peers[index]
        if what == "s":
            world.set(peer, *streams)
        elif what == "d":
            peer.is_connected = False
        elif what == "c":
            world.connect(peer)
        elif what == "k":
            world.stop(peer, says_so=dice.random() < 0.5)
            peers[index] = world.join(peer.cluster, *streams, node=peer.node)
        else:
            world.run(dice.choice([0.01, 0.2, 20]))
    world.loses = lambda _: False
    for peer in peers:
        if not peer.is_connected:
            world.connect(peer)
    world.run(5 * INTERVAL_MS / 1_000)
    for peer in peers:
        assert peer.conflicts() == world.expected(peer), peer.cluster
        balance: dict[tuple[str, str], int] = {}
        for event in peer.events:
            if isinstance(event, ConflictBegan | ConflictEnded):
                for name in event.streams:
                    change = 1 if isinstance(event, ConflictBegan) else -1
                    balance[name, event.cluster_id] = (
                        balance.get((name, event.cluster_id), 0) + change
                    )
                    assert 0 <= balance[name, event.cluster_id] <= 1
        assert {key for key, count in balance.items() if count} == {
            (name, cluster) for name, found in peer.conflicts().items() for cluster in found
        }
