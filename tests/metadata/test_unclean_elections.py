"""Which replica leads although it is not in sync, where the stream allows it, and what is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.errors import (
    UnknownPartition,
    UnknownStream,
)
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    unclean_elections,
)
from bascule.metadata.requests import (
    AcknowledgeLoss,
    Alter,
    ElectUncleanly,
    RegisterProcess,
    decide,
)
from bascule.metadata.troubles import find_troubles
from bascule.model import NO_LEADER
from support.deciding_controller import DecidingController, isr_change, registration


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


def outside(controller: DecidingController, name: str) -> tuple[int, int]:
    """Shrink the ISR of a stream with two replicas to its leader, and lose it; return both."""
    state = controller.state(name)
    leader, other = state.leader, next(n for n in state.replicas if n != state.leader)
    controller.submit(isr_change(controller, name, grow=False, node=other))
    controller.lose(leader)
    return leader, other


def test_without_the_setting_a_partition_waits_and_says_for_whom(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2, min_isr=1)
    leader, other = outside(controller, "a")
    state = controller.state("a")
    assert (state.leader, state.isr) == (NO_LEADER, (leader,))
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits == (
        f"waits for node {leader}, the last in sync, which is not alive; the replicas on {other} "
        "may lack committed records, and unclean_election is off"
    )


def test_an_unclean_election_takes_a_replica_out_of_sync(controller: DecidingController) -> None:
    controller.create("a", replicas=2, min_isr=1, unclean=True)
    before = controller.state("a")
    leader, other = outside(controller, "a")
    assert controller.state("a").leader == NO_LEADER
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits.endswith("are compared for an unclean election")
    before = controller.state("a")
    controller.elect_uncleanly()
    state = controller.state("a")
    assert (state.leader, state.isr) == (other, (other,))
    assert state.unclean_epoch == state.leader_epoch == before.leader_epoch + 1
    troubles = find_troubles(controller.image)
    assert not troubles.leaderless
    assert [(ref.stream, ref.unclean_epoch) for ref in troubles.unclean] == [
        ("a", state.leader_epoch)
    ]
    controller.submit(RegisterProcess(registration(leader, incarnation=2)))
    assert controller.state("a") == state, "who comes back has to catch up"


def test_an_unclean_election_is_shown_until_it_is_acknowledged(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2, min_isr=1, unclean=True)
    leader, _ = outside(controller, "a")
    controller.elect_uncleanly()
    before = controller.state("a")
    assert before.shown_unclean_epoch == before.leader_epoch
    controller.submit(AcknowledgeLoss("a", 0))
    after = controller.state("a")
    assert after == replace(
        before, acknowledged_epoch=before.unclean_epoch, version=before.version + 1
    )
    assert find_troubles(controller.image).unclean == ()
    assert decide(controller.image, AcknowledgeLoss("a", None)) == (), "nothing is left"
    controller.submit(RegisterProcess(registration(leader, incarnation=2)))
    controller.submit(isr_change(controller, "a", grow=True, node=leader))
    assert controller.image.streams["a"].id not in controller.image.index.troubled
    outside(controller, "a")
    controller.elect_uncleanly()
    (ref,) = find_troubles(controller.image).unclean
    assert ref.unclean_epoch > after.unclean_epoch, "the next one is shown"
    for error, request in (
        (UnknownStream, AcknowledgeLoss("b", None)),
        (UnknownPartition, AcknowledgeLoss("a", 2)),
    ):
        with pytest.raises(error):
            controller.submit(request)


def lose_all_in_turn(controller: DecidingController) -> tuple[int, int]:
    """Of three replicas the last in sync is lost, and the others are back; return those."""
    controller.create("a", replicas=3, min_isr=1, unclean=True)
    last, first, second = controller.state("a").replicas
    for node in (first, second, last):
        controller.lose(node)
    assert controller.state("a").isr == (last,)
    for node in (first, second):
        controller.submit(RegisterProcess(registration(node, incarnation=2)))
    return first, second


@pytest.mark.parametrize(
    ("of_first", "of_second", "longer"),
    [
        ((0, 40), (0, 80), 1),
        ((0, 80), (0, 40), 0),
        ((1, 40), (0, 80), 0),
        ((-1, 0), (0, 1), 1),
        ((1, 40), (1, 40), 0),
    ],
)
def test_the_longest_log_is_elected(
    controller: DecidingController,
    of_first: tuple[int, int],
    of_second: tuple[int, int],
    longer: int,
) -> None:
    """By the last leader epoch, then the end; else the preferred replica."""
    first, second = lose_all_in_turn(controller)
    controller.elect_uncleanly({first: of_first, second: of_second})
    assert controller.state("a").leader == (first, second)[longer]


def test_who_was_not_asked_or_is_gone_is_not_elected(controller: DecidingController) -> None:
    first, second = lose_all_in_turn(controller)
    state, stream_id = controller.state("a"), controller.image.streams["a"].id
    ends = tuple(
        LogEnd(node, controller.image.nodes[node].epoch, 0, end)
        for node, end in ((first, 80), (second, 40))
    )
    compared = ComparedLogs(stream_id, 0, state.version, ends)
    for stale in (
        compared._replace(version=state.version - 1),
        compared._replace(partition=1),
        compared._replace(stream_id=b"other"),
        compared._replace(ends=()),
    ):
        assert decide(controller.image, ElectUncleanly((stale,))) == ()
    controller.submit(RegisterProcess(registration(first, incarnation=3)))
    controller.submit(ElectUncleanly((compared,)))
    assert controller.state("a").leader == second, "the other's log may be shorter now"
    assert decide(controller.image, ElectUncleanly((compared,))) == (), "it has a leader"


def test_the_setting_can_be_altered_when_the_partition_waits(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2, min_isr=1)
    _, other = outside(controller, "a")
    controller.elect_uncleanly()
    assert controller.state("a").leader == NO_LEADER, "it is not allowed"
    controller.submit(Alter("a", {"unclean_election": True}))
    before = controller.image
    controller.elect_uncleanly()
    assert controller.state("a").leader == other
    change = ChangePartitions((PartitionChange(before.streams["a"].id, 0, controller.state("a")),))
    assert list(unclean_elections(before, change)) == list(change.changes)
    assert list(unclean_elections(controller.image, change)) == [], "it is in the image already"


def test_a_node_that_is_back_already_is_preferred_to_an_unclean_election(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2, min_isr=1, unclean=True)
    state = controller.state("a")
    other = next(node for node in state.replicas if node != state.leader)
    controller.submit(isr_change(controller, "a", grow=False, node=other))
    controller.submit(RegisterProcess(registration(state.leader, incarnation=2)))
    after = controller.state("a")
    assert (after.leader, after.unclean_epoch) == (state.leader, 0)


def test_with_the_setting_a_partition_waits_for_any_replica(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2, min_isr=1, unclean=True)
    state = controller.state("a")
    other = next(node for node in state.replicas if node != state.leader)
    controller.lose(other)
    controller.lose(state.leader)
    assert controller.state("a").leader == NO_LEADER
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits.endswith("; no other replica is alive either")
    controller.submit(RegisterProcess(registration(other, incarnation=2)))
    controller.elect_uncleanly()
    assert controller.state("a").leader == other
    assert controller.state("a").unclean_epoch == controller.state("a").leader_epoch
