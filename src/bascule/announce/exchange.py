"""The exchange of announcements between the nodes on one NATS, as seen by one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bascule.announce.duplicates import claim_of, duplicates_of
from bascule.announce.members import (
    INTERVALS_MISSED_MAX,
    MS,
    ClusterMembers,
    MemberHeard,
    MemberUnheard,
)
from bascule.announce.remote_node import RemoteNode
from bascule.model import DuplicateStream, StreamDefinition, is_internal_stream
from bascule.wire.announcements import (
    VERSION,
    Announcement,
    StreamClaim,
    Unreadable,
    decode_announcement,
    decode_claims,
    encode_announcement,
    encode_change,
    encode_list,
)

DELAY_NS: Final = 50 * MS
"""Before an answer, a list or a change is sent, so that one of them serves several reasons."""
REQUEST_DELAY_NS: Final = 100 * MS
"""Before a list is requested: a change that is on its way makes it unnecessary."""
SPREAD_MS: Final = 200
"""Delays differ by up to this between nodes, so that not all of them answer at once."""
LIST_SPACING_NS: Final = 1_000 * MS
"""Least time between two lists of a node."""
UNASKED_INTERVALS: Final = 30
"""Between the lists of a node that cannot hear requests: 5 minutes with the usual interval."""
NODES_MAX: Final = 256
"""Nodes of other clusters that are remembered. More than one NATS account serves in practice."""


@dataclass(frozen=True, slots=True)
class AnnouncingNode:
    """The sender of announcements: one run of a node."""

    cluster_id: str
    node_id: int
    run: str
    """16 hex digits, drawn at each start."""
    interval_ms: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Effect: publish this announcement."""

    data: bytes


@dataclass(frozen=True, slots=True)
class NodeFound:
    """Effect: a node of another cluster is heard for the first time."""

    cluster_id: str
    node_id: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Effect: a node of another cluster stopped, or is not heard of any more."""

    cluster_id: str
    node_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConflictBegan:
    """Effect: from now on these streams conflict with those of another cluster."""

    cluster_id: str
    nodes: tuple[int, ...]
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConflictEnded:
    """Effect: these streams do not conflict with those of another cluster any more."""

    cluster_id: str
    streams: tuple[str, ...]
    reason: str


Effect: TypeAlias = (
    Announce | NodeFound | NodeLost | ConflictBegan | ConflictEnded | MemberUnheard | MemberHeard
)


@dataclass(slots=True)
class AnnouncementCounts:
    """For metrics. Counts only grow, but for the gauges."""

    sent: int = 0
    """Counted by who publishes them."""
    received: int = 0
    """Of other nodes, those of the same cluster included."""
    refused: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            [*(reason.value for reason in Unreadable), "limit", "overflow"], 0
        )
    )
    """Announcements that are ignored, by reason."""
    left_out: int = 0
    """Streams that do not fit an announcement, in the last list."""
    nodes: int = 0
    """Nodes of other clusters that are heard now."""


class AnnouncementExchange:
    """Call `on_connected` first, then each `on_` method as it happens; carry out what it returns.

    Times are monotonic nanoseconds of one clock.
    """

    def __init__(self, me: AnnouncingNode) -> None:
        self.counts = AnnouncementCounts()
        self._me = me
        self.members = ClusterMembers(me.interval_ms)
        self._spread_ns = int(me.run[:4], 16) % SPREAD_MS * MS
        self._definitions: dict[str, StreamDefinition] = {}
        self._own: dict[str, StreamClaim] = {}
        self._revision = 0
        self._announced_revision = 0
        """The revision of the last change or list that was sent."""
        self._changed: set[str] = set()
        """Names of our streams that changed since then."""
        self._nodes: dict[str, RemoteNode] = {}
        """By run."""
        self._duplicates: dict[str, Mapping[str, DuplicateStream]] = {}
        """Name of our stream -> cluster id -> the same stream there."""
        self._bytes_max = 0
        self._alive_at_ns = 0
        self._is_asking = False
        self._list_at_ns: int | None = None
        self._list_sent_ns = -LIST_SPACING_NS
        self._change_at_ns: int | None = None
        self._is_deaf = False

    # What it knows

    def duplicates(self, name: str) -> tuple[DuplicateStream, ...]:
        """The same stream in other clusters, by cluster id."""
        return tuple(self._duplicates.get(name, {}).values())

    def conflicts(self) -> dict[str, list[DuplicateStream]]:
        """Each of our streams that is in conflict, by name -> the streams of other clusters."""
        found = {
            name: [each for each in clusters.values() if each.conflict]
            for name, clusters in sorted(self._duplicates.items())
        }
        return {name: streams for name, streams in found.items() if streams}

    def next_due_ns(self) -> int:
        """When `on_time` has something to do next."""
        return min(self._due_times())

    # What happens

    def on_connected(self, *, now_ns: int, payload_bytes_max: int) -> list[Effect]:
        """There is a new connection to NATS. Nothing was heard without one, so nobody is missed."""
        self._bytes_max = payload_bytes_max
        self.members.on_connected(now_ns=now_ns)
        for node in self._nodes.values():
            node.heard_ns = now_ns
        # The first announcement tells the revision, and who needs the list requests it.
        self._note_announced()
        self._is_asking = True
        self._alive_at_ns = now_ns
        return self.on_time(now_ns)

    def on_hearing(self, *, is_deaf: bool, now_ns: int) -> None:
        """Whether this node hears nobody, because it may not subscribe. Its list is then sent
        unasked, so that others notice it."""
        if is_deaf and not self._is_deaf:
            self._list_at_ns = now_ns + DELAY_NS
        self._is_deaf = is_deaf

    def on_streams(
        self, definitions: Mapping[str, StreamDefinition], *, now_ns: int
    ) -> list[Effect]:
        """The streams of this node are these from now on."""
        gone = dict.fromkeys(name for name in self._definitions if name not in definitions)
        return self.on_changed({**gone, **definitions}, now_ns=now_ns)

    def on_changed(
        self, definitions: Mapping[str, StreamDefinition | None], *, now_ns: int
    ) -> list[Effect]:
        """These streams of the node may have changed; None: there is none of this name now. The
        cost is that of these."""
        own = self._own
        changed, added = set(), []
        for name, definition in definitions.items():
            if self._definitions.get(name) is definition or is_internal_stream(name):
                continue
            claim = None if definition is None else claim_of(definition)
            if definition is None:
                del self._definitions[name]
            else:
                self._definitions[name] = definition
            before = own.get(name)
            if claim == before:
                continue
            changed.add(name)
            if claim is None:
                del own[name]
                for node in self._nodes.values():
                    node.claims.pop(name, None)
            else:
                own[name] = claim
                if before is None:
                    added.append(name)
        if not changed:
            return []
        self._revision += 1
        self._changed |= changed
        if self._change_at_ns is None:
            self._change_at_ns = now_ns + DELAY_NS
        for node in self._nodes.values():
            if added and (node.is_loading or any(map(node.may_have, added))):
                node.forget_list()
                node.request_at_ns = now_ns + REQUEST_DELAY_NS
        return self._refreshed(changed, "the stream of this cluster changed")

    def on_message(self, data: bytes, *, now_ns: int) -> list[Effect]:
        """An announcement came, from anybody."""
        self.counts.received += 1
        found = decode_announcement(data)
        if isinstance(found, Unreadable):
            self.counts.refused[found.value] += 1
            return []
        if found.run == self._me.run:
            return []
        if found.kind == "request":
            if found.target == self._me.run:
                wanted_ns = max(now_ns + DELAY_NS, self._list_sent_ns + LIST_SPACING_NS)
                self._list_at_ns = min(self._list_at_ns or wanted_ns, wanted_ns)
            return []
        if found.kind == "alive" and found.asking:
            answer_at_ns = now_ns + DELAY_NS + self._spread_ns
            self._alive_at_ns = min(self._alive_at_ns, answer_at_ns)
        if found.cluster == self._me.cluster_id and found.node != self._me.node_id:
            if found.kind == "end":
                self.members.on_stopped(found.node)
            else:
                self.members.on_heard(found.node, found.interval_ms, now_ns=now_ns)
            return []
        return self._on_other_cluster(found, now_ns)

    def on_members(self, alive: Collection[int], *, now_ns: int) -> list[Effect]:
        """These other nodes of this cluster live. Not called without a connection."""
        return [*self.members.look(alive, now_ns=now_ns)]

    def on_time(self, now_ns: int) -> list[Effect]:
        """Do what is due. Not called without a connection, because nobody is heard then."""
        effects: list[Effect] = []
        if self._change_at_ns is not None and self._change_at_ns <= now_ns:
            self._send_change(now_ns, effects)
        if self._list_at_ns is not None and self._list_at_ns <= now_ns:
            unasked_at_ns = now_ns + UNASKED_INTERVALS * self._me.interval_ms * MS
            self._list_at_ns = unasked_at_ns if self._is_deaf else None
            self._list_sent_ns = now_ns
            self._send_list(effects)
        for node in list(self._nodes.values()):
            if now_ns >= self._gone_at_ns(node):
                seconds = (now_ns - node.heard_ns) // (1_000 * MS)
                effects += self._on_gone(node, f"not heard of for {seconds} s")
            elif node.request_at_ns is not None and node.request_at_ns <= now_ns:
                node.request_at_ns = now_ns + node.interval_ns
                self._send(effects, kind="request", target=node.run)
        if self._alive_at_ns <= now_ns:
            self._alive_at_ns = now_ns + self._me.interval_ms * MS
            is_asking = self._is_asking or self.members.is_missing
            self._send(effects, kind="alive", asking=is_asking)
            self._is_asking = False
        return effects

    def on_stopping(self) -> list[Effect]:
        """This node stops."""
        effects: list[Effect] = []
        self._send(effects, kind="end")
        return effects

    # Other clusters

    def _on_other_cluster(self, found: Announcement, now_ns: int) -> list[Effect]:
        node = self._nodes.get(found.run)
        if found.kind == "end":
            return [] if node is None else self._on_gone(node, "the node of that cluster stopped")
        effects: list[Effect] = []
        if node is None:
            if len(self._nodes) >= NODES_MAX:
                self.counts.refused["limit"] += 1
                return []
            node = self._nodes[found.run] = RemoteNode(found, now_ns=now_ns)
            self.counts.nodes = len(self._nodes)
            effects.append(NodeFound(node.cluster_id, node.node_id))
        elif (found.cluster, found.node) != (node.cluster_id, node.node_id):
            self.counts.refused[Unreadable.MALFORMED.value] += 1
            return []
        node.on_heard(found, now_ns=now_ns)
        if found.revision != node.revision:
            effects += self._on_revision(node, found)
        if found.revision == node.revision:
            node.request_at_ns = None
        elif node.request_at_ns is None:
            node.request_at_ns = now_ns + REQUEST_DELAY_NS + self._spread_ns
        return effects

    def _on_revision(self, node: RemoteNode, found: Announcement) -> list[Effect]:
        """An announcement of another revision than is known of its sender."""
        if found.kind not in ("list", "change"):
            return []
        claims = decode_claims(found)
        if isinstance(claims, Unreadable):
            self.counts.refused[claims.value] += 1
            return []
        before = set(node.claims)
        take = node.take_page if found.kind == "list" else node.take_change
        take(found, claims, self._own)
        return self._refreshed(before | set(node.claims), "the stream of that cluster changed")

    def _on_gone(self, node: RemoteNode, reason: str) -> list[Effect]:
        del self._nodes[node.run]
        self.counts.nodes = len(self._nodes)
        return [
            NodeLost(node.cluster_id, node.node_id, reason),
            *self._refreshed(node.claims, reason),
        ]

    def _gone_at_ns(self, node: RemoteNode) -> int:
        return node.heard_ns + INTERVALS_MISSED_MAX * node.interval_ns

    def _refreshed(self, names: Iterable[str], reason: str) -> list[Effect]:
        """Compare these streams of ours with all nodes again; the conflicts that begin and end."""
        began: defaultdict[str, list[str]] = defaultdict(list)
        ended: defaultdict[str, list[str]] = defaultdict(list)
        nodes: defaultdict[str, set[int]] = defaultdict(set)
        for name in sorted(names):
            before = self._duplicates.pop(name, {})
            own = self._own.get(name)
            found = {} if own is None else duplicates_of(own, self._claims_of(name))
            if found:
                self._duplicates[name] = found
            for cluster_id in before.keys() | found.keys():
                was = cluster_id in before and before[cluster_id].conflict
                now = cluster_id in found and found[cluster_id].conflict
                if now and not was:
                    began[cluster_id].append(name)
                    nodes[cluster_id].update(found[cluster_id].nodes)
                elif was and not now:
                    ended[cluster_id].append(name)
        return [
            *(ConflictEnded(each, tuple(ended[each]), reason) for each in sorted(ended)),
            *(
                ConflictBegan(each, tuple(sorted(nodes[each])), tuple(began[each]))
                for each in sorted(began)
            ),
        ]

    def _claims_of(self, name: str) -> Iterator[tuple[str, int, StreamClaim]]:
        for node in self._nodes.values():
            if (claim := node.claims.get(name)) is not None:
                yield node.cluster_id, node.node_id, claim

    # Sending

    def _due_times(self) -> Iterator[int]:
        yield self._alive_at_ns
        for due_ns in (self._list_at_ns, self._change_at_ns):
            if due_ns is not None:
                yield due_ns
        for node in self._nodes.values():
            yield self._gone_at_ns(node)
            if node.request_at_ns is not None:
                yield node.request_at_ns

    def _announcement(self, **fields: Any) -> Announcement:
        return Announcement(
            v=VERSION,
            cluster=self._me.cluster_id,
            node=self._me.node_id,
            run=self._me.run,
            revision=self._revision,
            interval_ms=self._me.interval_ms,
            **fields,
        )

    def _send(self, effects: list[Effect], **fields: Any) -> None:
        effects.append(Announce(encode_announcement(self._announcement(**fields))))

    def _send_list(self, effects: list[Effect]) -> None:
        pages, self.counts.left_out = encode_list(
            self._announcement(kind="list"), self._own.values(), bytes_max=self._bytes_max
        )
        effects += map(Announce, pages)

    def _note_announced(self) -> None:
        self._announced_revision, self._change_at_ns = self._revision, None
        self._changed.clear()

    def _send_change(self, now_ns: int, effects: list[Effect]) -> None:
        claims = [self._own[name] for name in sorted(self._changed) if name in self._own]
        removed = [name for name in sorted(self._changed) if name not in self._own]
        change = self._announcement(kind="change", base=self._announced_revision)
        data = encode_change(change, claims, removed, bytes_max=self._bytes_max)
        self._note_announced()
        if data is None:
            # Whoever hears the new revision requests the list.
            self._alive_at_ns = now_ns
            return
        effects.append(Announce(data))
