"""Placement, elections and ISR changes: properties that hold after any history of requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import (
    BasculeError,
    FencedEpoch,
    NotEnoughNodes,
    UnknownPartition,
)
from bascule.metadata.apply import apply
from bascule.metadata.command_codec import (
    CHUNK_STREAMS,
    RequestId,
    decode_snapshot,
    encode_snapshot,
)
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.elections import (
    change_isr,
    why_leaderless,
)
from bascule.metadata.image import Image
from bascule.metadata.image_index import index_of
from bascule.metadata.replicas.balance import due_balancing
from bascule.metadata.replicas.placement import place_partitions
from bascule.metadata.requests import (
    Admit,
    Alter,
    BalanceLeaders,
    BalanceReplicas,
    CancelMoves,
    ChangeIsrs,
    Create,
    Delete,
    Drain,
    ElectLeaders,
    FinishLeaving,
    GiveLeaders,
    IsrChange,
    Leave,
    LimitCatchUp,
    LoseNode,
    Reassign,
    RegisterProcess,
    Resign,
    Resume,
    SetBalance,
    SetPaused,
    Stay,
    StepDown,
    decide,
    settle,
)
from bascule.metadata.troubles import count_troubles, find_troubles
from bascule.model import NO_LEADER, PartitionState, StreamConfig, StreamDefinition, SyncPolicy
from support.deciding_controller import DecidingController, isr_change, registration

NODES = (1, 2, 3, 4)


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


def waits(image: Image, stream_id: bytes, state: PartitionState) -> str:
    definition = next(each for each in image.streams.values() if each.id == stream_id)
    return why_leaderless(image, definition, state)


def check(before: Image, image: Image, rebooted: int = 0, *, are_compared: bool = False) -> None:
    """What holds in every image, and from one to the next. `rebooted` has lost writes between.
    `are_compared`: after the logs of all replicas that may be elected uncleanly."""
    assert image.removed.isdisjoint(image.nodes)
    assert image.index == index_of([*image.streams.values()], image.partitions)
    found, counts = find_troubles(image), count_troubles(image)
    for item in fields(counts):
        assert getattr(counts, item.name) == len(getattr(found, item.name)), item.name
    unclean = {each.id for each in image.streams.values() if each.config.unclean_election}
    for deletion in image.deletions.values():
        assert set(image.nodes) >= set(deletion.nodes), "nobody waits for a removed node"
    for stream_id, index, state in image.partition_states():
        assert set(state.target) <= set(state.replicas)
        assert set(state.origin) <= set(state.replicas), "a cancellation has where to go"
        assert state.target or not state.origin
        if state.target:
            definition = image.stream_of(stream_id)
            assert definition is not None
            least = min(len(state.origin), definition.config.replicas)
            assert len(state.target) >= least, "a move does not end with fewer than there were"
        assert set(image.nodes) >= set(state.replicas), "replicas are on nodes of the cluster"
        assert len(set(state.replicas)) == len(state.replicas), "replicas are on different nodes"
        assert set(state.isr) <= set(state.replicas)
        assert state.isr or state.eligible or state.lossy, "somebody is known to have the most"
        assert set(state.eligible) <= set(state.replicas) - set(state.isr)
        assert set(state.lossy) <= set(state.replicas)
        known = [node for node in (*state.isr, *state.eligible) if image.nodes[node].alive]
        alive = [node for node in known if node not in state.lossy]
        if state.leader != NO_LEADER:
            alive = known
            assert not set(state.lossy) & set(state.isr), "who leads has left no doubt"
        assert (state.leader == NO_LEADER) == bool(waits(image, stream_id, state))
        assert not are_compared or known == alive, "doubtful ones lead once logs are compared"
        if stream_id not in unclean:
            assert state.unclean_epoch == 0
        elif are_compared:
            living = [node for node in state.replicas if image.nodes[node].alive]
            assert (state.leader == NO_LEADER) == (not living), "any replica will do"
        if alive:
            assert state.leader in alive, "who has everything and is alive leads"
            assert state.leader in state.isr
        else:
            assert state.leader == NO_LEADER
        earlier = before.partitions.get(stream_id, ())
        if index < len(earlier):
            old = earlier[index]
            assert state.version >= old.version
            assert state.leader_epoch >= old.leader_epoch
            assert (state.version == old.version) == (state == old)
            if set(old.replicas) - set(state.replicas):
                assert state.leader_epoch > old.leader_epoch, "positions are forgotten"
            has_dropped = set(old.replicas) - set(state.replicas)
            if has_dropped and before.nodes.keys() == image.nodes.keys():
                kept = set(state.replicas) & set(old.isr)
                wanted = min(len(old.isr), len(state.target or state.replicas))
                if state.replicas == old.origin:  # a move was cancelled
                    definition = image.stream_of(stream_id)
                    assert definition is not None
                    wanted = min(wanted, definition.needed_in_sync(old))
                assert len(state.isr) >= wanted, "no replica leaves before others are in sync"
                is_unclean = state.unclean_epoch != old.unclean_epoch
                assert kept or not old.isr or is_unclean, "a member of the old ISR stays"
            if state.leader != old.leader:
                assert state.leader_epoch > old.leader_epoch, "an election raises the epoch"
                if state.unclean_epoch == old.unclean_epoch:
                    assert state.leader in (*old.isr, *state.isr, NO_LEADER), "from the ISR"
                else:
                    assert state.unclean_epoch == state.leader_epoch
                    assert state.isr == (state.leader,)
                    known = {*old.isr, *old.eligible} - {rebooted}
                    assert not any(image.nodes[node].alive for node in known)
            elif (
                state.leader != NO_LEADER
                and before.nodes[old.leader].epoch != image.nodes[old.leader].epoch
            ):
                assert state.leader_epoch > old.leader_epoch, "a new process, a new epoch"
    assert {d.id for d in image.streams.values()} == set(image.partitions)


class Records:
    """How many committed records each replica has, if all that may be committed is."""

    def __init__(self) -> None:
        self._committed: Counter[tuple[bytes, int]] = Counter()
        self._has: Counter[tuple[bytes, int, int]] = Counter()

    def follow(self, before: Image, image: Image, *, rebooted: int, damaged: int) -> None:
        """Check that who leads lacks nothing, and commit another record everywhere."""
        for stream_id, index, state in image.partition_states():
            key = (stream_id, index)
            earlier = before.partitions.get(stream_id, ())
            old = earlier[index] if index < len(earlier) else state
            definition = image.stream_of(stream_id)
            assert definition is not None
            config = definition.config
            is_kept = config.sync is SyncPolicy.ALWAYS or config.replicas == 1
            if rebooted and not is_kept and len(old.replicas) > 1:
                self._has[*key, rebooted] = 0
            if damaged and damaged not in (*state.isr, *state.eligible):
                self._has[*key, damaged] = 0
            if state.unclean_epoch > old.unclean_epoch:
                self._committed[key] = self._has[*key, state.leader]
            for node in {*state.isr} - {*old.isr, *old.eligible, state.leader}:
                self._has[*key, node] = self._committed[key]  # its leader says so
            for node in (*state.isr, *state.eligible):
                assert self._has[*key, node] == self._committed[key], (node, old, state)
            if state.leader != NO_LEADER and len(state.isr) >= (
                state.min_isr or definition.min_isr
            ):
                self._committed[key] += 1
                for node in state.isr:
                    self._has[*key, node] = self._committed[key]


KINDS = (
    "reboot", "reboot", "damage", "needs",
    "start", "lose", "create", "delete", "shrink", "grow", "more",
    "replicas", "reassign", "leave", "stay", "force", "admit", "upkeep", "balance", "stop",
    "cancel", "cancel", "elect", "drain", "resume", "even",
)  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from(KINDS)
    return draw(st.lists(st.tuples(kinds, st.integers(0, 3), st.integers(1, 3)), max_size=40))


OPERATIONS = frozenset({"cancel", "elect", "drain", "resume", "even"})


def operate(controller: DecidingController, kind: str, node: int, name: str, number: int) -> None:
    """What an operator asks for. Raises: BasculeError, KeyError."""
    match kind:
        case "cancel":
            controller.submit(CancelMoves(name, None if number == 1 else number - 2))
        case "elect":
            controller.submit(ElectLeaders(name, None, node if number > 1 else None))
        case "drain":
            controller.submit(Drain(node, empties=number > 1))
            check_drained(controller.image, node)
        case "resume":
            controller.submit(Resume(node))
            controller.submit(GiveLeaders(number))
            controller.submit(LimitCatchUp(number - 1))
        case "even":
            controller.submit(SetBalance(number > 1))
            moves = due_balancing(controller.image, count_max=2)
            controller.submit(BalanceReplicas(moves, number == 1))


def check_drained(image: Image, node: int) -> None:
    """A drained node leads only what nobody else can lead."""
    for _, _, state in image.partition_states():
        if state.leader == node:
            able = [n for n in state.isr if image.is_alive(n) and not image.gives_leaders(n)]
            assert not able, "somebody else can lead"


@settings(max_examples=600)
@given(histories())
def test_any_history_keeps_the_rules(history: list[tuple[str, int, int]]) -> None:
    controller = DecidingController()
    controller.register(*NODES)
    records = Records()
    incarnation = 1
    for kind, which, number in history:
        before, node, name = controller.image, NODES[which], f"s{which}"
        incarnation += 1
        rebooted = node if kind == "reboot" else 0
        damaged = node if kind == "damage" else 0
        try:
            if kind in ("start", "reboot"):
                process = registration(node, incarnation)
                controller.submit(RegisterProcess(process, has_lost_writes=bool(rebooted)))
            elif kind == "damage":
                state, stream_id = controller.state(name), controller.image.streams[name].id
                controller.submit(Resign(node, stream_id, 0, state.leader_epoch))
            elif kind == "needs":
                controller.submit(Alter(name, {"min_isr": number}))
            elif kind == "lose":
                controller.lose(node)
            elif kind == "create":
                controller.create(
                    name,
                    replicas=number,
                    partitions=1 + which,
                    unclean=which % 2 == 1,
                    sync=list(SyncPolicy)[incarnation % 3],
                )
            elif kind == "delete":
                controller.submit(Delete(name))
            elif kind == "more":
                partitions = controller.image.streams[name].config.partitions + 1
                controller.submit(Alter(name, {"partitions": partitions}))
            elif kind == "replicas":
                controller.submit(Alter(name, {"replicas": number}))
            elif kind == "reassign":
                chosen = [NODES[(which + step) % len(NODES)] for step in range(number)]
                controller.submit(Reassign(name, None, tuple(chosen)))
            elif kind in ("leave", "force"):
                controller.submit(Leave(node, force=kind == "force"))
            elif kind == "stay":
                controller.submit(Stay(node))
            elif kind == "admit":
                controller.submit(Admit(registration(node, directory=f"d{incarnation}")))
            elif kind == "upkeep":
                controller.finish_moves()
                controller.begin_due_moves(2)
                controller.submit(FinishLeaving(node))
            elif kind == "balance":
                controller.submit(BalanceLeaders(2))
            elif kind == "stop":
                controller.submit(StepDown(node, controller.image.nodes[node].epoch))
            elif kind in OPERATIONS:
                operate(controller, kind, node, name, number)
            else:
                controller.submit(isr_change(controller, name, grow=kind == "grow", node=node))
        except (BasculeError, KeyError):
            assert controller.image == before
        check(before, controller.image, rebooted)
        records.follow(before, controller.image, rebooted=rebooted, damaged=damaged)
        before = controller.image
        ends = {node: (number, node) for node in NODES}
        controller.elect_longest(ends)
        controller.elect_uncleanly(ends)
        check(before, controller.image, are_compared=True)
        records.follow(before, controller.image, rebooted=0, damaged=0)
        assert settle(controller.image) == (), "nothing is left for the next controller"
    for _ in range(2):  # a leader that is to go hands over first
        controller.finish_moves()
    for _, _, state in controller.image.partition_states():
        in_sync = set(state.target) <= set(state.isr)
        assert not state.target or not in_sync or state.leader == NO_LEADER, "the move has ended"
    requests = (RequestId(b"a", 7), RequestId(b"b", 5))
    chunks = list(encode_snapshot(controller.image, requests))
    assert decode_snapshot(chunks) == (controller.image, requests)


def test_replicas_are_spread_and_each_node_leads_its_share(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3, partitions=6)
    states = controller.image.partitions[controller.image.streams["a"].id]
    assert sorted(state.leader for state in states) == [1, 1, 2, 2, 3, 3]
    assert all(state.replicas[0] == state.leader for state in states)
    assert all(sorted(state.replicas) == [1, 2, 3] for state in states)


def test_replicas_are_in_different_racks() -> None:
    controller = DecidingController()
    for node, rack in enumerate(("a", "a", "b", "b"), start=1):
        controller.submit(RegisterProcess(registration(node, rack=rack)))
    for state in place_partitions(controller.image, 20, replicas=2):
        first, second = state.replicas
        assert (first <= 2) != (second <= 2)


def test_more_replicas_than_nodes_are_refused(controller: DecidingController) -> None:
    controller.lose(2)
    with pytest.raises(
        NotEnoughNodes, match=r"3 replicas .* 2 nodes are alive and take replicas: \[1, 3\]"
    ):
        controller.create("a", replicas=3)


def test_a_lost_leader_is_replaced_from_the_isr(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    before = controller.state("a")
    controller.lose(before.leader)
    after = controller.state("a")
    assert after.leader in before.isr
    assert after.leader != before.leader
    assert after.isr == tuple(node for node in (1, 2, 3) if node != before.leader)
    assert after.leader_epoch == before.leader_epoch + 1
    assert [ref.stream for ref in find_troubles(controller.image).under_replicated] == ["a"]


def test_a_lost_follower_leaves_the_isr_and_the_leader_stays(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3)
    before = controller.state("a")
    lost = next(node for node in before.isr if node != before.leader)
    controller.lose(lost)
    after = controller.state("a")
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert lost not in after.isr


def test_the_last_member_of_an_isr_stays_in_it_and_leads_when_it_is_back(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=1)
    node = controller.state("a").leader
    controller.lose(node)
    lost = controller.state("a")
    assert (lost.leader, lost.isr) == (NO_LEADER, (node,))
    assert [ref.stream for ref in find_troubles(controller.image).leaderless] == ["a"]
    controller.submit(RegisterProcess(registration(node, incarnation=2)))
    assert controller.state("a").leader == node
    assert controller.state("a").leader_epoch > lost.leader_epoch


def test_a_process_that_was_started_again_unnoticed_leads_in_a_new_epoch(
    controller: DecidingController,
) -> None:
    controller.create("alone", replicas=1)
    controller.create("many", replicas=3)
    before = {name: controller.state(name) for name in ("alone", "many")}
    node = before["alone"].leader
    controller.submit(RegisterProcess(registration(node, incarnation=9)))
    assert controller.state("alone").leader == node
    assert controller.state("alone").leader_epoch > before["alone"].leader_epoch
    assert node not in controller.state("many").isr, "it has to catch up first"


def test_the_same_process_registers_again_with_addresses(controller: DecidingController) -> None:
    epoch = controller.image.nodes[1].epoch
    assert decide(controller.image, RegisterProcess(registration(1))) == ()
    moved = replace(registration(1), client="host1:7777")
    controller.submit(RegisterProcess(moved))
    assert controller.image.nodes[1].client == "host1:7777"
    assert controller.image.nodes[1].epoch == epoch


def test_an_old_process_cannot_be_lost_in_place_of_a_new_one(
    controller: DecidingController,
) -> None:
    epoch = controller.image.nodes[1].epoch
    controller.submit(RegisterProcess(registration(1, incarnation=2)))
    assert decide(controller.image, LoseNode(1, epoch)) == ()


def test_isr_changes_are_fenced(controller: DecidingController) -> None:
    stream_id = controller.create("a", replicas=3)
    state = controller.state("a")
    epochs = {node: controller.image.nodes[node].epoch for node in (1, 2, 3)}

    def change(**other: Any) -> PartitionChange | None:
        wanted: dict[str, Any] = {
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "version": state.version,
            "members": [(state.leader, epochs[state.leader])],
        }
        return change_isr(controller.image, stream_id, 0, **{**wanted, **other})

    made = change()
    assert made is not None
    assert made.state.isr == (state.leader,)
    assert change(version=state.version + 1) is None
    assert change(members=[(4, 1), (state.leader, epochs[state.leader])]) is None, "no replica"
    assert change(members=[(n, e) for n, e in epochs.items() if n != state.leader]) is None
    stale = [(node, epoch - (node != state.leader)) for node, epoch in epochs.items()]
    assert change(members=stale) is None, "an older process of a node"
    with pytest.raises(FencedEpoch):
        change(leader_epoch=state.leader_epoch + 1)
    with pytest.raises(FencedEpoch):
        change(leader=next(node for node in epochs if node != state.leader))
    with pytest.raises(UnknownPartition):
        change_isr(
            controller.image, b"nobody".ljust(16), 0,
            leader=1, leader_epoch=0, version=0, members=[],
        )  # fmt: skip


def test_a_repeated_request_has_one_effect(controller: DecidingController) -> None:
    request = Create("a", StreamConfig("a"), b"i" * 16, 0)
    controller.submit(request)
    assert decide(controller.image, request) == ()
    controller.submit(SetPaused("a", True))
    assert decide(controller.image, SetPaused("a", True)) == ()
    controller.submit(Delete("a", b"i" * 16))
    assert decide(controller.image, Delete("a", b"i" * 16)) == ()
    before = controller.image
    assert apply(before, ChangePartitions(())) == before


def test_a_change_of_an_older_version_has_no_effect(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    (late,) = decide(controller.image, LoseNode(3, controller.image.nodes[3].epoch))[1:]
    controller.lose(2)
    before = controller.image
    assert apply(before, late, index=99) == before


def test_a_new_controller_finishes_what_its_predecessor_began(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3)
    node = controller.state("a").leader
    fence, *_ = decide(controller.image, LoseNode(node, controller.image.nodes[node].epoch))
    controller.commit([fence])
    assert controller.state("a").leader == node, "the predecessor died between the two"
    controller.commit(settle(controller.image))
    assert controller.state("a").leader != node
    assert settle(controller.image) == ()


def test_isr_changes_of_one_request_are_one_command(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=6)
    stream_id = controller.image.streams["a"].id
    states = controller.image.partitions[stream_id]
    epoch = controller.image.nodes[1].epoch
    changes = [
        IsrChange(stream_id, index, state.leader_epoch, state.version, ((1, epoch),))
        for index, state in enumerate(states)
    ]
    gone = IsrChange(b"nobody".ljust(16), 0, 0, 0, ((1, epoch),))
    request = ChangeIsrs(1, (gone, *changes))
    (command,) = decide(controller.image, request)
    led = [index for index, state in enumerate(states) if state.leader == 1]
    assert isinstance(command, ChangePartitions)
    assert [change.partition for change in command.changes] == led, "of those that it leads"
    controller.submit(request)
    assert [controller.state("a", index).isr for index in led] == [(1,)] * len(led)
    assert decide(controller.image, request) == (), "a repetition changes nothing"


def test_a_snapshot_depends_on_the_image_alone() -> None:
    """Its streams come in parts of bounded size, in an order that no hash decides."""
    states = (PartitionState((1,), (1,), 1, 0, 0),)
    random = Random(5)
    streams = [
        StreamDefinition(f"s{number}", random.randbytes(16), 0, StreamConfig(f"s.{number}"))
        for number in range(2_500)
    ]
    snapshots = []
    for _ in range(2):
        random.shuffle(streams)
        image = Image.of(
            streams={each.name: each for each in streams},
            partitions={each.id: states for each in streams},
        )
        snapshots.append(list(encode_snapshot(image, [])))
    assert snapshots[0] == snapshots[1]
    sizes = [len(decode_snapshot([chunk])[0].streams) for chunk in snapshots[0]]
    assert sum(sizes) == 2_500
    assert max(sizes) <= CHUNK_STREAMS
    assert decode_snapshot(snapshots[0]) == (image, ())
