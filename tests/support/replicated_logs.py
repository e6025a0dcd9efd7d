"""A model of the logs of a cluster's replicas, and of what was acked, around the real decisions.

Processes act on the image that they have seen last, which may be old. Leaders append, followers
copy, and a leader acks what the rules of `replication` let it commit. Processes are killed, and
machines lose what was not synced, and one of a partition's disks more than that, without anybody
noticing it. The controller decides at once, and what it decides is checked:
whoever may lead cleanly has every acked record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from bascule.errors import BasculeError
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    awaited_logs,
    doubtful_candidates,
    is_enough,
    unclean_candidates,
    why_leaderless,
)
from bascule.metadata.image import Image
from bascule.metadata.replicas.eligible import replicas_before_move
from bascule.metadata.replicas.steps import Steps, steps_of
from bascule.metadata.requests import (
    Admit,
    ChangeIsrs,
    ControllerRequest,
    ElectLongest,
    ElectUncleanly,
    IsrChange,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    Resign,
    StepDown,
    settle,
)
from bascule.model import NO_LEADER, PartitionState, StreamDefinition, SyncPolicy
from support.deciding_controller import DecidingController, registration
from support.modelled_operator import administer
from support.modelled_process import Entry, Key, Leading, Log, Process


class ReplicatedLogs:
    """One scene. `step` does something at random, and checks what has to hold."""

    def __init__(self, random: Random, nodes: int = 4) -> None:
        self.random = random
        self.controller = DecidingController()
        self.numbers = tuple(range(1, nodes + 1))
        self.processes: dict[int, Process] = {}
        self._starting: dict[int, Process] = {}
        """Those that have not registered yet."""
        self._pending: dict[Steps, Callable[[], None]] = {}
        """Decisions whose steps are not all taken, and what happens then."""
        self.logs: dict[tuple[int, Key], Log] = {}
        """By node and partition."""
        self.acked: dict[Key, list[Entry]] = {}
        self.leaders: dict[tuple[Key, int], int] = {}
        """Who has led an epoch."""
        self.lost_writes: set[int] = set()
        """Nodes whose machines went down, and have not registered since."""
        self.clean_elections = self.unclean_elections = self.eligible_elections = 0
        self.doubtful_elections = 0
        self.acks = 0
        self.trace: list[str] = []
        self._drawn = 0
        self._directories = dict.fromkeys(self.numbers, 0)
        for node in self.numbers:
            self.start(node)
        for replicas in (2, 3):
            self.create(f"s{replicas}", replicas)
        for node in self.numbers:
            self.see(node)

    # -- what the image says ----------------------------------------------------------------------

    @property
    def image(self) -> Image:
        return self.controller.image

    def keys(self) -> Iterator[tuple[Key, StreamDefinition, PartitionState]]:
        for name, definition in sorted(self.image.streams.items()):
            for index, state in enumerate(self.image.partitions[definition.id]):
                assert definition.name == name
                yield (definition.id, index), definition, state

    def log(self, node: int, key: Key) -> Log:
        return self.logs.setdefault((node, key), Log())

    def draw(self) -> int:
        self._drawn += 1
        return self._drawn

    def submit(self, request: ControllerRequest) -> bool:
        """Whether it was not refused."""
        return self._begin(request, lambda: None)

    def _begin(self, request: ControllerRequest, on_done: Callable[[], None]) -> bool:
        """Take the steps of a decision, or leave some of them for later; whether it was not
        refused."""
        taking = steps_of(self.image, request)
        self._pending[taking] = on_done
        try:
            self._advance(taking, None)
            while taking in self._pending and self.random.random() < 0.6:
                self._advance(taking, self.image)
        except (BasculeError, KeyError):
            self._give_up(taking)
            return False
        return True

    def _advance(self, taking: Steps, image: Image | None) -> None:
        """Take the next step on this image, the first one on none."""
        before, on_done = self.image, None
        try:
            commands = next(taking) if image is None else taking.send(image)
        except StopIteration as last:
            commands, on_done = last.value, self._pending.pop(taking)
        if commands:
            self.controller.commit(commands)
        self._follow(before)
        if on_done is not None:
            on_done()

    def _go_on(self) -> None:
        """Take another step of a decision that was left."""
        if self._pending:
            taking = self.random.choice(list(self._pending))
            try:
                self._advance(taking, self.image)
            except BasculeError:
                self._give_up(taking)

    def _give_up(self, taking: Steps) -> None:
        """What was begun is finished as by a new controller."""
        del self._pending[taking]
        self._settle()

    def _replace_controller(self) -> None:
        """The next one knows of no decision that was begun; who asked, asks again."""
        self._pending.clear()
        self._starting.clear()
        self._settle()

    def _settle(self) -> None:
        if not self._pending and (commands := settle(self.image)):
            before = self.image
            self.controller.commit(commands)
            self._follow(before)

    # -- nodes ------------------------------------------------------------------------------------

    def _registration(self, node: int, incarnation: int) -> Any:
        return registration(
            node, incarnation, directory=f"d{node}-{self._directories.get(node, 0)}"
        )

    def start(self, node: int) -> None:
        if node in self.processes or (node in self._starting and self._pending):
            return
        made = Process(self.draw(), self.image)
        found = self._registration(node, made.incarnation)
        self._starting[node] = made

        def registered() -> None:
            if self._starting.get(node) is made:
                del self._starting[node]
                self.lost_writes.discard(node)
                self.processes[node] = made
                self.see(node)

        request = RegisterProcess(found, has_lost_writes=node in self.lost_writes)
        if not self._begin(request, registered):
            self._starting.pop(node, None)

    def kill(self, node: int) -> None:
        self.processes.pop(node, None)
        self._starting.pop(node, None)

    def lose_power(self, node: int) -> None:
        """The machine goes down, and is up again."""
        self.kill(node)
        self.lost_writes.add(node)
        for (each, key), log in list(self.logs.items()):
            if each == node:
                least = 0 if self._may_be_damaged(node, key) else log.synced
                log.cut(self.random.randint(least, len(log.entries)))
                log.sync()  # what is left is on the disk

    def _may_be_damaged(self, node: int, key: Key) -> bool:
        """Whether a disk may have lost what was synced last, with nobody noticing it: those of all
        others that count are whole, and of machines that go down together not only one counts."""
        definition, state = self.image.stream_of(key[0]), self.image.partitions.get(key[0], ())
        if definition is None or key[1] >= len(state) or self.random.random() < 0.5:
            return False
        known = {*state[key[1]].isr, *state[key[1]].eligible}
        return (
            definition.config.sync is SyncPolicy.ALWAYS
            and definition.needed_in_sync(state[key[1]]) > 1
            and node in known
            and len(known) > 1
            and all(self._is_whole(other, key) for other in known - {node})
        )

    def leaves_whole_logs(self, node: int) -> bool:
        """Whether nobody gives up the last log that is whole while another one waits for it."""
        return not any(
            self._is_whole(node, key) and not all(self._is_whole(n, key) for n in known)
            for key, _, state in self.keys()
            if node in (known := (*state.isr, *state.eligible))
        )

    def are_whole(self, name: str) -> bool:
        """Whether no replica that counts is damaged: with `min_isr` 1 only one of them would."""
        return all(
            self._is_whole(node, key)
            for key, definition, state in self.keys()
            for node in (*state.isr, *state.eligible)
            if definition.name == name
        )

    def _is_whole(self, node: int, key: Key) -> bool:
        acked = self.acked.get(key, [])
        return self.log(node, key).entries[: len(acked)] == acked

    def stop(self, node: int) -> None:
        """A clean stop: it syncs everything."""
        if node in self.processes:
            if node in self.image.nodes:
                self.submit(StepDown(node, self.image.nodes[node].epoch))
            if self.random.random() < 0.5:
                self.see(node)
            for (each, _), log in self.logs.items():
                if each == node:
                    log.sync()
            self.kill(node)

    def lose(self, node: int) -> None:
        """The controller does not hear the node, which may run."""
        if node in self.image.nodes:
            self.submit(LoseNode(node, self.image.nodes[node].epoch))

    def come_back(self, node: int) -> None:
        """A process that was lost and runs registers again."""
        process, found = self.processes.get(node), self.image.nodes.get(node)
        if process is None or found is None or found.alive:
            return
        if found.incarnation == process.incarnation:
            self.submit(RegisterProcess(self._registration(node, process.incarnation)))

    def see(self, node: int) -> None:
        """The process follows the image as it is now."""
        process = self.processes.get(node)
        if process is None:
            return
        image = process.seen = self.image
        if node not in image.nodes:
            self.kill(node)
            return
        for key, definition, state in self.keys():
            if node not in state.replicas:
                self.logs.pop((node, key), None)
                process.leads.pop(key, None)
                continue
            log, leading = self.log(node, key), process.leads.get(key)
            if definition.config.sync is SyncPolicy.ALWAYS:
                log.sync()
            if state.leader != node or image.nodes[node].incarnation != process.incarnation:
                process.leads.pop(key, None)
            elif leading is not None and leading.epoch == state.leader_epoch:
                if leading.version < state.version:
                    leading.version, leading.pending = state.version, None
            elif state.leader_epoch <= log.last_epoch:
                process.leads.pop(key, None)
                self.submit(Resign(node, *key, state.leader_epoch))
            else:
                began = self.leaders.setdefault((key, state.leader_epoch), node)
                assert began == node, "two leaders of one epoch"
                process.leads[key] = Leading(state.leader_epoch, state.version, len(log.entries))

    def _led(self) -> list[tuple[int, Process, Key, Leading]]:
        return [
            (node, process, key, leading)
            for node, process in sorted(self.processes.items())
            for key, leading in sorted(process.leads.items())
        ]

    # -- records ----------------------------------------------------------------------------------

    def publish(self) -> None:
        for node, process, key, leading in self._led():
            definition = process.seen.stream_of(key[0])
            assert definition is not None
            state = process.seen.partitions[key[0]][key[1]]
            if len(state.isr) >= definition.needed_in_sync(state) and self.random.random() < 0.7:
                self.log(node, key).entries.append((leading.epoch, self.draw()))
                self._commit(node, process, key, leading)

    def copy(self) -> None:
        """Followers copy the logs of leaders that they follow, and may sync."""
        for node, process, key, leading in self._led():
            for other in self.random.sample(self.numbers, len(self.numbers)):
                follower = self.processes.get(other)
                if follower is not None and other != node and self.random.random() < 0.7:
                    self._copy(node, process, key, leading, other, follower)

    def _copy(
        self, node: int, process: Process, key: Key, leading: Leading, other: int, to: Process
    ) -> None:
        states = to.seen.partitions.get(key[0], ())
        if key[1] >= len(states) or other not in to.seen.nodes:
            return
        state = states[key[1]]
        follows = (state.leader, state.leader_epoch) == (node, leading.epoch)
        known = process.seen.partitions[key[0]][key[1]].replicas
        if not follows or other not in state.replicas or other not in known:
            return
        epoch = to.seen.nodes[other].epoch
        if epoch < leading.positions.get(other, (-1, 0))[0]:
            return
        mine, theirs = self.log(node, key), self.log(other, key)
        theirs.cut(theirs.common(mine.entries))
        end = self.random.randint(len(theirs.entries), len(mine.entries))
        if self.random.random() < 0.7:
            end = len(mine.entries)
        theirs.entries += mine.entries[len(theirs.entries) : end]
        if self.random.random() < 0.6:
            theirs.sync()
        definition = process.seen.stream_of(key[0])
        assert definition is not None
        is_synced = definition.config.sync is SyncPolicy.ALWAYS
        leading.positions[other] = epoch, theirs.synced if is_synced else len(theirs.entries)
        self._commit(node, process, key, leading)

    def _commit(self, node: int, process: Process, key: Key, leading: Leading) -> None:
        """Ack what the leader may, as far as it knows."""
        definition = process.seen.stream_of(key[0])
        assert definition is not None
        state = process.seen.partitions[key[0]][key[1]]
        log, acked = self.log(node, key), self.acked.setdefault(key, [])
        if definition.config.sync is SyncPolicy.ALWAYS:
            log.sync()
            own = log.synced
        else:
            own = len(log.entries)
        if len(state.isr) < definition.needed_in_sync(state):
            return
        counting = {*state.isr, *(leading.pending or ())} - {node}
        ends = [leading.positions.get(each, (0, -1))[1] for each in counting]
        leading.committed = max(leading.committed, min([own, *ends]))
        present = self.image.partitions.get(key[0], ())
        if present and present[key[1]].unclean_epoch > leading.epoch:
            return  # what it acks is lost: an operator has given it up
        end = min(leading.committed, len(acked))
        assert log.entries[:end] == acked[:end], f"node {node} leads {state} with other records"
        if leading.committed > len(acked):
            self.acks += leading.committed - len(acked)
            acked += log.entries[len(acked) : leading.committed]

    def change_isr(self) -> None:
        """Leaders ask for other ISRs: they add who has caught up, and remove some others."""
        for node, process, key, leading in self._led():
            is_gone = self.processes.get(node) is not process or key not in process.leads
            if is_gone or leading.pending is not None or self.random.random() < 0.5:
                continue
            state = process.seen.partitions[key[0]][key[1]]
            reached = max(leading.committed, leading.start)
            members = {node: process.seen.nodes[node].epoch}
            for other in state.replicas:
                epoch, position = leading.positions.get(other, (-1, -1))
                if other in state.isr and other != node:
                    if self.random.random() < 0.75:
                        found = process.seen.nodes.get(other)
                        members[other] = max(epoch, found.epoch if found is not None else -1)
                elif position >= reached and other != node:
                    members[other] = epoch
            wanted = tuple(sorted(members))
            if wanted == state.isr:
                continue
            leading.pending = wanted
            change = IsrChange(*key, leading.epoch, leading.version, tuple(sorted(members.items())))
            before = self.image
            self.submit(ChangeIsrs(node, (change,)))
            if self.image is before and self.random.random() < 0.5:
                # It is certain once this node has seen an image at which it was refused.
                self.see(node)
                if process.leads.get(key) is leading:
                    leading.pending = None

    # -- what is checked --------------------------------------------------------------------------

    def _follow(self, before: Image) -> None:
        for key, definition, state in self.keys():
            acked = self.acked.setdefault(key, [])
            earlier = before.partitions.get(key[0], ())
            old = earlier[key[1]] if key[1] < len(earlier) else None
            if old is None:
                continue
            if state.unclean_epoch > old.unclean_epoch:
                self.unclean_elections += 1
                del acked[self.log(state.leader, key).common(acked) :]
            elif state.leader not in (old.leader, NO_LEADER):
                self.clean_elections += 1
                self.eligible_elections += state.leader not in old.isr
            assert definition.needed_in_sync(state) > 0
        self.check()

    def check(self) -> None:
        """Who is in sync, or eligible, has every acked record on a disk that is whole."""
        image = self.image
        for key, definition, state in self.keys():
            acked = self.acked.setdefault(key, [])
            is_only = definition.config.replicas == 1 or len(state.replicas) == 1
            known = (*state.isr, *state.eligible)
            if is_only and len(known) == 1 and not self.lost_writes.isdisjoint(known):
                # A log of which there is one replica is what is left.
                del acked[self.log(known[0], key).common(acked) :]
            is_unsynced = definition.config.sync is not SyncPolicy.ALWAYS
            for node in known:
                if node in self.lost_writes and is_unsynced:
                    assert not image.nodes[node].alive or node not in self.processes
                    continue
                if node in self.lost_writes or node in state.lossy:
                    continue  # its disk may be damaged
                assert self._is_whole(node, key), f"node {node} lacks acked records: {state}"
            if not is_unsynced and known:
                assert any(self._is_whole(node, key) for node in known), (
                    f"one disk is damaged: {key} {state}"
                )
            assert not {*state.eligible} & {*state.isr}
            if self._pending:
                continue
            if state.leader != NO_LEADER:
                assert not {*state.lossy} & {*state.isr}, f"who leads has left no doubt: {state}"
            alive = [n for n in known if image.nodes[n].alive]
            certain = [n for n in alive if n not in state.lossy]
            assert state.leader in certain or not certain, (
                f"who has everything leads: {key} {state}"
            )
            assert state.leader in (*certain, NO_LEADER)
            assert bool(why_leaderless(image, definition, state)) == (state.leader == NO_LEADER)
        assert self._pending or settle(image) == ()

    # -- what may happen --------------------------------------------------------------------------

    def step(self) -> None:
        """One thing at random."""
        kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
        kind = self.random.choice(kinds)
        node = self.random.choice(self.numbers)
        names = sorted(self.image.streams)
        name = self.random.choice(names) if names else ""
        self.trace.append(f"{kind} {node} {name}")
        match kind:
            case "start" | "kill" | "lose_power" | "stop" | "lose" | "come_back" | "see":
                getattr(self, kind)(node)
            case "publish" | "copy" | "change_isr":
                getattr(self, kind)()
            case "see_all":
                for each in self.numbers:
                    self.see(each)
            case "go_on" | "replace_controller":
                getattr(self, f"_{kind}")()
            case "silence":
                self._report_silence(node)
            case "elect":
                self.elect_uncleanly()
            case "compare":
                self.elect_longest()
            case "damage":
                self._damage(node)
            case "full":
                self._fill_disk(node)
            case _:
                administer(self, kind, node, name)
        self.check()

    def _report_silence(self, suspect: int) -> None:
        found = self.image.nodes.get(suspect)
        if found is None:
            return
        reporters = {
            node: process.seen.nodes[node].epoch
            for node, process in self.processes.items()
            if node != suspect and node in process.seen.nodes and self.random.random() < 0.7
        }
        self.submit(ReplaceLeader(suspect, found.epoch, reporters))

    def _damage(self, node: int) -> None:
        """A log is found damaged; its node resigns, and repairs it with what is left."""
        held = [key for key, _, state in self.keys() if node in (*state.isr, *state.eligible)]
        if not held or node not in self.processes:
            return
        key = self.random.choice(held)
        state = self.image.partitions[key[0]][key[1]]
        log = self.log(node, key)
        whole = Log(list(log.entries), log.synced)
        others = {*state.isr, *state.eligible} - {node}
        if not all(self._is_whole(other, key) for other in others):
            return  # one disk of a partition is damaged
        if not others.isdisjoint(self.image.alive()) or node in state.eligible:
            self.processes[node].leads.pop(key, None)
            before = self.image
            self.controller.submit(Resign(node, *key, state.leader_epoch))
            after = self.image.partitions[key[0]][key[1]]
            if node not in (*after.isr, *after.eligible):
                log.cut(self.random.randint(0, len(whole.entries)))
            self._follow(before)

    def _fill_disk(self, node: int) -> None:
        """A node leaves the ISRs in which another one is alive, and keeps its logs."""
        process = self.processes.get(node)
        if process is None:
            return
        for stream_id, index, state in list(process.seen.partition_states()):
            others = {*state.isr} - {node}
            if node in state.isr and not others.isdisjoint(process.seen.alive()):
                self.submit(Resign(node, stream_id, index, state.leader_epoch, is_whole=True))

    def elect_uncleanly(self) -> None:
        """Compare the logs of the replicas whose processes run."""
        compared = []
        for stream_id, index, state in self.image.troubled_states():
            ends = tuple(
                LogEnd(node, self.image.nodes[node].epoch, log.last_epoch, len(log.entries))
                for node in unclean_candidates(self.image, stream_id, state)
                if node in self.processes
                for log in [self.log(node, (stream_id, index))]
            )
            if ends:
                compared.append(ComparedLogs(stream_id, index, state.version, ends))
        if compared:
            self.submit(ElectUncleanly(tuple(compared)))

    def elect_longest(self) -> None:
        """Compare the logs of the replicas whose processes run, as after the time to wait for the
        others. Not where two of these lack records, one by damage and one that was not in sync."""
        compared = []
        for stream_id, index, state in self.image.troubled_states():
            key = stream_id, index
            nodes = [n for n in doubtful_candidates(self.image, state) if n in self.processes]
            is_awaited = not awaited_logs(state).issubset(nodes)
            lacking = [n for n in nodes if not self._is_whole(n, key)]
            if is_awaited and (len(lacking) > 1 or len(replicas_before_move(state)) < 3):
                continue
            if is_enough(state, nodes, nodes):
                ends = tuple(
                    LogEnd(node, self.image.nodes[node].epoch, log.last_epoch, len(log.entries))
                    for node in nodes
                    for log in [self.log(node, key)]
                )
                compared.append(ComparedLogs(*key, state.version, ends))
        if compared:
            before = self.image.partitions
            self.submit(ElectLongest(tuple(compared)))
            self.doubtful_elections += self.image.partitions is not before

    def create(self, name: str, replicas: int) -> None:
        before = self.image
        try:
            self.controller.create(
                name,
                replicas=replicas,
                partitions=self.random.randint(1, 2),
                min_isr=self.random.randint(0, replicas),
                unclean=self.random.random() < 0.2,
                sync=self.random.choice(list(SyncPolicy)),
            )
        except BasculeError:
            return
        self._follow(before)

    def admit(self, node: int) -> None:
        """The number is used again, with an empty directory."""
        self.kill(node)
        for each, key in list(self.logs):
            if each == node:
                del self.logs[each, key]
        self._directories[node] += 1
        self.lost_writes.discard(node)
        self.submit(Admit(self._registration(node, self.draw())))


WEIGHTS = {
    "publish": 12, "copy": 14, "change_isr": 8, "see_all": 8, "see": 6,
    "start": 7, "kill": 3, "lose_power": 3, "stop": 1, "lose": 5, "come_back": 2,
    "silence": 1, "elect": 1, "compare": 6, "damage": 1, "full": 1, "create": 3, "needs": 2,
    "replicas": 1, "unclean": 1, "sync": 1, "reassign": 2,
    "leave": 1, "stay": 1, "force": 1, "admit": 1,
    "upkeep": 2, "balance": 1, "cancel": 2, "give": 1, "drain": 1, "resume": 2, "even": 1,
    "go_on": 12, "replace_controller": 1,
}  # fmt: skip
"""What happens, and how often."""
