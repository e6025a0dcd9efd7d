"""Scripts for transcripts of a group: commands, and below each command the effects that the nodes
request.

A script has comments (`#`), commands (`> command words key=value`) and, indented below each
command, its output. `run_script` runs the commands and returns the text with the current output.

Time passes only with `tick`. Messages arrive only with `deliver` and `stabilize`. Writes are done
only with `written` and `stabilize`. The state machine applies at once, unless `hold` stops it.
After `quietly`, a command prints only changed states and answers. The commands:

```
config KEY=N...                       settings of later nodes; also chunk_entries, timeout_extra
reset                                 remove all nodes, messages and settings
bootstrap 1 2 3                       start a new group
restore 2 of=1,2,3 terms=1,1,4 term=6 vote=1 snapshot=2    start a node from such a disk
join 4                                start a node that waits to be added
timeout-extra 2,3 N | config timeout_extra=N    next election timeouts: election_ticks + N
campaign 1 | propose 1 a b c1..c9 bytes=N deadline=N | transfer 1 2
change 1 add-voter|add-learner|remove|demote 4 expected=N
read 1 NAME [lease|local] min=N deadline=N
tick 1,2|all [N] | run N              run: N times tick all and stabilize
deliver [1->2] [WORD...] [first=N]    deliver messages with these words in their text
drop | copy [1->2] [WORD...]          lose such messages, or duplicate them
written 1 [N|all] | hold 1 | applied 1 | release 1
crash 1 | restart 1
partition 1 2 | 3 | heal | cut 1->2
stabilize [1 2]
log [1] | disk 1 | state 1 | status [1]
```
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy

import msgspec

from bascule.errors import BasculeError
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Apply, ApplyDone, ReadPolicy, Ready, Write, WriteDone
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import AnyMessage, Entry, EntryKind, RaftSnapshot
from bascule.raft.node import RaftNode
from bascule.raft.store import persist_write
from bascule.raft.testing.memory_store import MemoryStore
from raft.printing import (
    FILLER,
    answer_text,
    entries_text,
    members_text,
    message_text,
    ready_text,
    state_text,
)

CHANGES = {
    "add-voter": MemberChange.ADD_VOTER,
    "add-learner": MemberChange.ADD_LEARNER,
    "remove": MemberChange.REMOVE,
    "demote": MemberChange.DEMOTE,
}


class FixedRandom:
    """A `Random` that always returns `low` plus a fixed amount."""

    def __init__(self) -> None:
        self.extra = 0.0

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return min(low + self.extra, high)


class StateMachine:
    """A list of applied names; a chunk of its snapshot has up to `chunk_entries` of them."""

    def __init__(self, chunk_entries: int) -> None:
        self.chunk_entries = chunk_entries
        self.names: list[str] = []

    def apply(self, apply: Apply) -> ApplyDone:
        if apply.restore is not None:
            text = b" ".join(apply.restore.chunks).decode()
            self.names = text.split()
        names = [
            e.payload.rstrip(FILLER).decode() for e in apply.entries if e.kind == EntryKind.NORMAL
        ]
        self.names += names
        return ApplyDone(apply.last, self.chunks() if apply.take_snapshot else None)

    def chunks(self) -> tuple[bytes, ...]:
        step = self.chunk_entries
        parts = [self.names[at : at + step] for at in range(0, len(self.names), step)]
        return tuple(" ".join(part).encode() for part in parts) or (b"",)


class Machine:
    """One node with its disk and its state machine."""

    def __init__(self, node_id: int, config: RaftConfig, chunk_entries: int) -> None:
        self.id = node_id
        self.config = config
        self.chunk_entries = chunk_entries
        self.store = MemoryStore()
        self.random = FixedRandom()
        self.held = False
        self.start()

    def start(self) -> None:
        """Reset everything that is not on the disk."""
        self.writes: deque[Write] = deque()
        self.apply: Apply | None = None
        self.names: dict[int, str] = {}
        self.state = StateMachine(self.chunk_entries)
        self.shown = ""
        self.node: RaftNode | None = None

    def open(self) -> None:
        self.start()
        self.node = RaftNode(self.id, self.config, self.store.load(), self.random)

    @property
    def running(self) -> RaftNode:
        assert self.node is not None, f"node {self.id} is down"
        return self.node


class Environment:
    """The nodes, the messages in flight, and the output of the current command."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.chunk_entries = 2
        self.timeout_extra = 0.0
        self.machines: dict[int, Machine] = {}
        self.network: list[AnyMessage] = []
        self.cuts: set[tuple[int, int]] = set()
        self.lines: list[str] = []
        self.quiet = False

    # -- running a script ---------------------------------------------------------------------

    def run(self, command: str) -> list[str]:
        """The output of one command."""
        self.lines = []
        words = command.split()
        self.quiet = words[0] == "quietly"
        name, *rest = words[1:] if self.quiet else words
        options = dict(word.split("=", 1) for word in rest if re.match(r"\w+=", word))
        plain = [word for word in rest if not re.match(r"\w+=", word)]
        do: Callable[..., None] = getattr(self, "do_" + name.replace("-", "_"))
        do(*plain, **options)
        if self.quiet:
            self.quiet = False
            for machine in self.chosen(()):
                self.show_state(machine, 1, always=False)
        return self.lines

    def emit(self, depth: int, text: str) -> None:
        if not self.quiet:
            self.lines.append("  " * depth + text)

    def tell(self, text: str) -> None:
        """Print a line, also for a quiet command."""
        self.lines.append("  " + text)

    # -- nodes --------------------------------------------------------------------------------

    def do_config(self, **settings: str) -> None:
        self.chunk_entries = int(settings.pop("chunk_entries", self.chunk_entries))
        self.timeout_extra = float(settings.pop("timeout_extra", self.timeout_extra))
        self.settings |= settings

    def add(self, node_id: int) -> Machine:
        config = msgspec.convert(self.settings, RaftConfig, strict=False)
        machine = self.machines[node_id] = Machine(node_id, config, self.chunk_entries)
        machine.random.extra = self.timeout_extra
        return machine

    def do_reset(self) -> None:
        """Forget all nodes, messages and settings."""
        self.__init__()  # type: ignore[misc]

    def do_bootstrap(self, *ids: str) -> None:
        members = Members.of(*map(int, ids))
        for node_id in members.voters:
            self.start(node_id, members)

    def do_join(self, node_id: str) -> None:
        self.start(int(node_id), Members(()))

    def start(self, node_id: int, members: Members) -> None:
        machine = self.add(node_id)
        machine.store.bootstrap(members)
        machine.open()
        self.drain(machine, 1)

    def do_restore(
        self, node_id: str, *, of: str, terms: str, term: str, vote: str = "0", snapshot: str = "0"
    ) -> None:
        """Start a node from a disk with entries of these terms, and optionally a snapshot."""
        members = Members.of(*map(int, of.split(",")))
        machine = self.add(int(node_id))
        store = machine.store
        store.bootstrap(members)
        store.persist_term(int(term), int(vote))
        entries = [
            Entry(index, int(of_term), EntryKind.NORMAL, f"e{index}".encode())
            for index, of_term in enumerate(terms.split(",") if terms else (), 1)
        ]
        store.persist_entries(entries)
        if covered := int(snapshot):
            state = StateMachine(self.chunk_entries)
            state.apply(Apply(last=covered, entries=tuple(entries[:covered])))
            of_term = entries[covered - 1].term
            for chunk in RaftSnapshot(covered, of_term, members, state.chunks()).as_chunks():
                store.persist_chunk(chunk)
            store.truncate_until(covered)
        store.flush()
        machine.open()
        self.drain(machine, 1)

    def do_timeout_extra(self, node_ids: str, extra: str) -> None:
        for machine in self.chosen(node_ids.split(",")):
            machine.random.extra = float(extra)

    def do_crash(self, node_id: str) -> None:
        """Lose the memory and what was not synced."""
        machine = self.machines[int(node_id)]
        machine.start()
        machine.store.crash(machine.random)

    def do_restart(self, node_id: str) -> None:
        machine = self.machines[int(node_id)]
        machine.open()
        self.drain(machine, 1, show=True)

    # -- requests -----------------------------------------------------------------------------

    def ask(self, node_id: str, name: str, call: Callable[[RaftNode], int | None]) -> None:
        """Call the node. Print its error, or remember the name of its ticket."""
        machine = self.machines[int(node_id)]
        try:
            ticket = call(machine.running)
        except BasculeError as error:
            self.tell(f"{name}: {error}")
        else:
            if ticket is not None:
                machine.names[ticket] = name

    def drain_one(self, node_id: str) -> None:
        self.drain(self.machines[int(node_id)], 1)

    def do_campaign(self, node_id: str) -> None:
        self.machines[int(node_id)].running.campaign()
        self.drain_one(node_id)

    def do_propose(
        self, node_id: str, *names: str, bytes: str = "0", deadline: str | None = None
    ) -> None:
        for name in expanded(names):
            payload = name.encode().ljust(int(bytes), FILLER)
            self.ask(
                node_id,
                name,
                lambda node, payload=payload: node.propose(payload, deadline_ticks=ticks(deadline)),
            )
        self.drain_one(node_id)

    def do_change(
        self, node_id: str, change: str, target: str, *, expected: str | None = None
    ) -> None:
        self.ask(
            node_id,
            f"{change} {target}",
            lambda node: node.change_members(
                CHANGES[change], int(target), expected_index=ticks(expected)
            ),
        )
        self.drain_one(node_id)

    def do_transfer(self, node_id: str, target: str, *, deadline: str | None = None) -> None:
        self.ask(
            node_id,
            f"transfer to {target}",
            lambda node: node.transfer(int(target), deadline_ticks=ticks(deadline)),
        )
        self.drain_one(node_id)

    def do_read(
        self,
        node_id: str,
        name: str,
        policy: str = "linearizable",
        *,
        min: str = "0",
        deadline: str | None = None,
    ) -> None:
        self.ask(
            node_id,
            name,
            lambda node: node.read(
                ReadPolicy(policy), min_index=int(min), deadline_ticks=ticks(deadline)
            ),
        )
        self.drain_one(node_id)

    # -- time, messages, disks ----------------------------------------------------------------

    def chosen(self, ids: Iterable[str]) -> list[Machine]:
        wanted = {int(node_id) for node_id in ids if node_id != "all"} or self.machines.keys()
        return [m for m in self.machines.values() if m.id in wanted and m.node is not None]

    def do_tick(self, node_ids: str, count: str = "1") -> None:
        for _ in range(int(count)):
            for machine in self.chosen(node_ids.split(",")):
                machine.running.tick()
                self.drain(machine, 1)

    def do_run(self, count: str) -> None:
        for _ in range(int(count)):
            self.do_tick("all")
            self.do_stabilize()

    def matching(self, words: Iterable[str]) -> list[AnyMessage]:
        """Messages in flight whose text has all the words; `1->` is from 1 and `->2` to 2."""

        def fits(message: AnyMessage, word: str) -> bool:
            if "->" not in word:
                return word in re.split(r"[ ,\[\]]+", message_text(message))
            ends = zip(word.split("->"), (message.source, message.target), strict=True)
            return all(not wanted or wanted == str(found) for wanted, found in ends)

        return [m for m in self.network if all(fits(m, word) for word in words)]

    def take(self, message: AnyMessage) -> None:
        position = next(at for at, held in enumerate(self.network) if held is message)
        del self.network[position]

    def do_deliver(self, *words: str, first: str = "999") -> None:
        for message in self.matching(words)[: int(first)]:
            self.take(message)
            self.deliver(message)

    def do_copy(self, *words: str) -> None:
        """Duplicate these messages."""
        self.network += self.matching(words)

    def do_drop(self, *words: str) -> None:
        for message in self.matching(words):
            self.take(message)
            self.emit(1, f"{message_text(message)} dropped")

    def deliver(self, message: AnyMessage) -> None:
        machine = self.machines.get(message.target)
        if (message.source, message.target) in self.cuts or machine is None or not machine.node:
            self.emit(1, f"{message_text(message)} lost")
            return
        self.emit(1, message_text(message))
        try:
            machine.node.step(message)
        except BasculeError as error:
            self.tell(f"  {type(error).__name__}: {error}")
        self.drain(machine, 2)

    def do_written(self, node_id: str, count: str = "1") -> None:
        """Complete the oldest writes of a node, in order."""
        machine = self.machines[int(node_id)]
        for _ in range(len(machine.writes) if count == "all" else int(count)):
            write = machine.writes.popleft()
            persist_write(machine.store, write)
            if write.sync:
                machine.store.flush()
            self.emit(1, f"{machine.id} wrote {write.number}")
            for message in write.then_send:
                self.network.append(message)
            machine.running.advance(WriteDone(write.number))
            self.drain(machine, 2)

    def do_hold(self, node_id: str) -> None:
        self.machines[int(node_id)].held = True

    def do_release(self, node_id: str) -> None:
        machine = self.machines[int(node_id)]
        machine.held = False
        self.apply(machine)
        self.drain(machine, 1)

    def do_applied(self, node_id: str) -> None:
        machine = self.machines[int(node_id)]
        self.apply(machine)
        self.drain(machine, 1)

    def apply(self, machine: Machine) -> None:
        if machine.apply is not None:
            done, machine.apply = machine.state.apply(machine.apply), None
            machine.running.advance(done)

    def do_stabilize(self, *ids: str) -> None:
        """Deliver and write until nothing is in flight between these nodes."""
        machines = self.chosen(ids)
        inside = {machine.id for machine in machines} if ids else None
        while True:
            found = [m for m in self.network if inside is None or {m.source, m.target} <= inside]
            writing = [machine for machine in machines if machine.writes]
            if not found and not writing:
                return
            for message in found:
                self.take(message)
                self.deliver(message)
            for machine in writing:
                self.do_written(str(machine.id), "all")

    def drain(self, machine: Machine, depth: int, *, show: bool = False) -> None:
        """Print and carry out the effects that the node requests, until it requests none."""
        node = machine.running
        while (ready := node.ready()) is not None:
            self.show_state(machine, depth, always=depth == 1)
            self.begin(machine, ready, depth + 1)
            show = False
        self.show_state(machine, depth, always=show)

    def show_state(self, machine: Machine, depth: int, *, always: bool) -> None:
        text = state_text(machine.running)
        if self.quiet or not (always or machine.shown != text):
            return
        machine.shown = text
        self.emit(depth, text)

    def begin(self, machine: Machine, ready: Ready, depth: int) -> None:
        if self.quiet:
            for answer in ready.answers:
                self.tell(f"{machine.id} {answer_text(machine.names[answer.ticket], answer)}")
        for line in ready_text(ready, machine.names):
            self.emit(depth, line)
        self.network += ready.send
        if ready.write is not None:
            machine.writes.append(ready.write)
        if ready.apply is not None:
            assert machine.apply is None, "a second apply while one is out"
            machine.apply = ready.apply
            if not machine.held:
                self.apply(machine)

    # -- the network --------------------------------------------------------------------------

    def do_partition(self, *words: str) -> None:
        """Cut all links between the sides, which are separated by `|`."""
        sides = [side.split() for side in " ".join(words).split("|")]
        for at, side in enumerate(sides):
            for other in sides[:at] + sides[at + 1 :]:
                self.cuts |= {(int(a), int(b)) for a in side for b in other}

    def do_cut(self, *ways: str) -> None:
        self.cuts |= {(int(a), int(b)) for a, b in (way.split("->") for way in ways)}

    def do_heal(self) -> None:
        self.cuts.clear()

    # -- printing -----------------------------------------------------------------------------

    def do_log(self, *ids: str) -> None:
        """Print the logs; nodes with equal logs share a line."""
        found: dict[str, list[str]] = {}
        for machine in self.chosen(ids):
            log = machine.running.log
            text = entries_text(log.slice(log.first, log.last + 1))
            if log.snapshot_index:
                text = f"snapshot {log.snapshot_index}/{log.snapshot_term} {text}"
            found.setdefault(text, []).append(str(machine.id))
        for text, nodes in found.items():
            self.emit(1, f"{' '.join(nodes)}: {text}")

    def do_state(self, node_id: str) -> None:
        self.emit(1, " ".join(self.machines[int(node_id)].state.names))

    def do_disk(self, node_id: str) -> None:
        """Print what the disk would contain after a crash."""
        machine = self.machines[int(node_id)]
        disk = deepcopy(machine.store)
        disk.crash(FixedRandom())
        found = disk.load()
        text = f"term {found.term} vote {found.voted_for or 'nobody'} {entries_text(found.entries)}"
        if found.snapshot is not None:
            text = f"snapshot {found.snapshot.index}/{found.snapshot.term} {text}"
        self.emit(1, text)

    def do_status(self, *ids: str) -> None:
        for machine in self.chosen(ids):
            node = machine.running
            text = f"{state_text(node)} applied {node.applied} last {node.log.last}"
            self.emit(1, f"{text} members {members_text(node.members)}")


def ticks(text: str | None) -> int | None:
    return None if text is None else int(text)


def expanded(names: Iterable[str]) -> list[str]:
    """`a1..a3` stands for a1 a2 a3."""
    found: list[str] = []
    for name in names:
        if match := re.fullmatch(r"(\D+)(\d+)\.\.\1(\d+)", name):
            prefix, start, end = match.groups()
            found += [f"{prefix}{number}" for number in range(int(start), int(end) + 1)]
        else:
            found.append(name)
    return found


def run_script(text: str) -> str:
    """The script with the current output of its commands."""
    environment = Environment()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += environment.run(line[2:])
    return "\n".join(lines) + "\n"
