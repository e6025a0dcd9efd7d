"""Processes with many groups on one simulated network; a seed determines its faults.

Every bundle is encoded and decoded. A tick of `World` ticks each `MultiRaft`, then delivers
messages and carries out effects until nothing is left to do. Writes take up to `disk_ticks`. When a
process is killed, unflushed data is lost or kept at random.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from bascule.host.real import RealRandom
from bascule.raft import codec
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Apply, ApplyDone, RequestOutcome, Role, Write, WriteDone
from bascule.raft.membership import Members
from bascule.raft.messages import AnyMessage, EntryKind
from bascule.raft.multi.bundle import Bundle
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from bascule.raft.store import persist_write
from bascule.raft.testing.memory_store import MemoryStore

CONFIG = RaftConfig(commit_count_to_take_snapshot=50, pending_entries_max=50)


@dataclass
class Faults:
    """Shares of bundles, and the maximum delay in ticks."""

    loss: float = 0.0
    twice: float = 0.0
    late_ticks: int = 0


@dataclass
class Sent:
    at: int
    bundle: Bundle
    size: int

    @property
    def messages(self) -> list[AnyMessage]:
        return [message for _, message in self.bundle.messages]


@dataclass
class Process:
    """One node: its `MultiRaft`, and the stores and state machines of its groups."""

    id: int
    multi_raft: MultiRaft
    stores: dict[int, MemoryStore]
    applied: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    machine_at: dict[int, int] = field(default_factory=dict)
    writes: deque[tuple[int, int, Write]] = field(default_factory=deque)
    """(tick of completion, group, write), in order."""
    answers: list[tuple[int, Answer]] = field(default_factory=list)


class World:
    def __init__(
        self, nodes: int = 3, groups: int = 1, *, seed: int = 0, config: RaftConfig = CONFIG,
        disk_ticks: int = 0, voters: int | None = None,
    ) -> None:  # fmt: skip
        self.random = RealRandom(seed)
        self.config = config
        self.disk_ticks = disk_ticks
        self.now = 0
        self.incarnations = 0
        self.faults = Faults()
        self.cut: set[tuple[int, int]] = set()
        """Links (source, target) that are cut."""
        self.drop: list[type[AnyMessage]] = []
        """Types of messages that are removed from every bundle."""
        self.sent: list[Sent] = []
        self.wire: list[tuple[int, int, bytes]] = []
        """(tick of arrival, number, body)."""
        self.number = 0
        self.history: dict[int, list[bytes]] = defaultdict(list)
        """By group: the longest sequence that a state machine applied."""
        self.processes: dict[int, Process] = {}
        members = Members.of(*range(1, (voters or nodes) + 1))
        self.stores: dict[int, dict[int, MemoryStore]] = {}
        for node in range(1, nodes + 1):
            self.stores[node] = {group: MemoryStore() for group in range(1, groups + 1)}
            for store in self.stores[node].values():
                store.bootstrap(members if node in members else Members.of())
            self.start(node)

    # -- processes ----------------------------------------------------------------------------

    def start(self, node: int) -> None:
        self.incarnations += 1
        multi_raft = MultiRaft(
            node,
            self.incarnations,
            heartbeat_ticks=self.config.heartbeat_ticks,
            election_ticks=self.config.election_ticks,
        )
        process = self.processes[node] = Process(node, multi_raft, self.stores[node])
        for group, store in process.stores.items():
            multi_raft.add(group, RaftNode(node, self.config, store.load(), self.random))

    def kill(self, node: int) -> None:
        del self.processes[node]
        for store in self.stores[node].values():
            store.crash(self.random)

    def isolate(self, node: int) -> None:
        for other in self.stores:
            self.cut |= {(node, other), (other, node)}

    # -- time ---------------------------------------------------------------------------------

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def tick(self) -> None:
        while self._work():
            pass
        self.now += 1
        for process in self.processes.values():
            due = process.multi_raft.due()
            process.multi_raft.tick()
            if due is None or due > 1:
                assert process.multi_raft.ready() is None, f"node {process.id} said {due} ticks"
        while self._work():
            pass

    def _work(self) -> bool:
        """Carry out everything that is due now, once. Returns whether there was anything."""
        worked = False
        for process in list(self.processes.values()):
            worked |= self._ready(process)
            worked |= self._write(process)
        due = sorted(item for item in self.wire if item[0] <= self.now)
        self.wire = [item for item in self.wire if item[0] > self.now]
        for _, _, body in due:
            bundle = codec.decode(body)
            if bundle.target in self.processes:
                assert not self.processes[bundle.target].multi_raft.receive(bundle)
        return worked or bool(due)

    def _ready(self, process: Process) -> bool:
        ready = process.multi_raft.ready()
        if ready is None:
            return False
        for bundle in ready.bundles:
            self._send(bundle)
        for group, write in ready.writes:
            process.writes.append((self.now + self._below(self.disk_ticks), group, write))
        for group, apply in ready.applies:
            process.multi_raft.advance(group, self._apply(process, group, apply))
        process.answers += ready.answers
        return True

    def _write(self, process: Process) -> bool:
        worked = False
        while process.writes and process.writes[0][0] <= self.now:
            _, group, write = process.writes.popleft()
            persist_write(process.stores[group], write)
            if write.sync:
                process.stores[group].flush()
            process.multi_raft.advance(group, WriteDone(write.number), write.then_send)
            worked = True
        return worked

    def _apply(self, process: Process, group: int, apply: Apply) -> ApplyDone:
        done, history = process.applied[group], self.history[group]
        if apply.restore is not None:
            done[:] = b"".join(apply.restore.chunks).split(b",")[1:]
        done += [entry.payload for entry in apply.entries if entry.kind == EntryKind.NORMAL]
        assert done[: len(history)] == history[: len(done)], f"group {group} applied otherwise"
        history += done[len(history) :]
        chunks = (b"", *[b"," + payload for payload in done]) if apply.take_snapshot else None
        return ApplyDone(apply.last, chunks)

    # -- the network --------------------------------------------------------------------------

    def _send(self, bundle: Bundle) -> None:
        if self.drop:
            kept = [m for m in bundle.messages if not isinstance(m[1], tuple(self.drop))]
            bundle = replaced(bundle, messages=tuple(kept))
        body = bytes(codec.encode(bundle))
        self.sent.append(Sent(self.now, bundle, len(body)))
        if (bundle.source, bundle.target) in self.cut or self._happens(self.faults.loss):
            return
        for _ in range(2 if self._happens(self.faults.twice) else 1):
            self.number += 1
            self.wire.append((self.now + self._below(self.faults.late_ticks), self.number, body))

    def _happens(self, share: float) -> bool:
        return share > 0 and self.random.uniform(0, 1) < share

    def _below(self, most: int) -> int:
        return int(self.random.uniform(0, most + 1)) if most else 0

    # -- queries ------------------------------------------------------------------------------

    def multi_raft(self, node: int) -> MultiRaft:
        return self.processes[node].multi_raft

    def leader(self, group: int) -> int:
        """The leader of the highest term; 0: none."""
        nodes = [process.multi_raft.node(group) for process in self.processes.values()]
        leaders = [(node.term, node.id) for node in nodes if node.role is Role.LEADER]
        return max(leaders, default=(0, 0))[1]

    def hibernating(self) -> int:
        """The number of hibernating nodes."""
        return sum(
            process.multi_raft.node(group).hibernating
            for process in self.processes.values()
            for group in process.multi_raft.groups
        )

    def run_until_hibernation(self, ticks_max: int = 200) -> int:
        """Run until all groups hibernate on all nodes; returns the ticks."""
        return self.run_until_hibernation_of(tuple(self.processes), ticks_max)

    def run_until_hibernation_of(self, nodes: tuple[int, ...], ticks_max: int = 200) -> int:
        for count in range(ticks_max):
            awake = [
                (node, group)
                for node in nodes
                for group in self.multi_raft(node).groups
                if not self.multi_raft(node).node(group).hibernating
            ]
            if not awake:
                return count
            self.tick()
        raise AssertionError(f"awake after {ticks_max} ticks: {awake}")

    def propose(self, group: int, payload: bytes, ticks_max: int = 200) -> None:
        """Return when all running nodes have applied `payload`. It is proposed again if it was
        lost."""
        ticket = where = None
        for _ in range(ticks_max):
            if all(payload in process.applied[group] for process in self.processes.values()):
                return
            leader = self.leader(group)
            if leader and ticket is None:
                ticket, where = self.multi_raft(leader).node(group).propose(payload), leader
            self.tick()
            if where is not None and ticket is not None:
                for found, answer in self.processes[where].answers:
                    lost = (RequestOutcome.NOT_LEADER, RequestOutcome.INDETERMINATE)
                    if (found, answer.ticket) == (group, ticket) and answer.outcome in lost:
                        ticket = None
        raise AssertionError(f"no progress of group {group} in {ticks_max} ticks")

    def sent_since(self, tick: int) -> list[Sent]:
        return [sent for sent in self.sent if sent.at > tick]


def replaced(bundle: Bundle, **changes: object) -> Bundle:
    fields = {name: getattr(bundle, name) for name in bundle.__struct_fields__}
    return Bundle(**{**fields, **changes})
