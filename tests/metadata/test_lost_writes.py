"""Who may lead after machines went down without a clean stop, and after a log was damaged."""

from __future__ import annotations

import pytest

from bascule.errors import CannotAlter, CannotRemoveNode
from bascule.metadata.commands import ChangePartitions, FenceNode
from bascule.metadata.elections import changes_after_loss, unclean_candidates
from bascule.metadata.replicas import steps
from bascule.metadata.replicas.steps import steps_of
from bascule.metadata.requests import (
    Alter,
    Leave,
    RegisterProcess,
    Resign,
    settle,
)
from bascule.metadata.troubles import find_troubles
from bascule.model import NO_LEADER, SyncPolicy
from support.deciding_controller import DecidingController, isr_change, registration

UNSYNCED = (SyncPolicy.INTERVAL, SyncPolicy.NEVER)


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


def reboot(controller: DecidingController, node: int, incarnation: int = 2) -> None:
    process = registration(node, incarnation)
    controller.submit(RegisterProcess(process, has_lost_writes=True))


def start(controller: DecidingController, node: int, incarnation: int = 2) -> None:
    controller.submit(RegisterProcess(registration(node, incarnation)))


def two_in_sync(controller: DecidingController, **settings: SyncPolicy) -> tuple[int, int, int]:
    """A stream with three replicas, one of which is behind: the leader, the other one in sync, and
    that one."""
    controller.create("a", replicas=3, **settings)  # type: ignore[arg-type]
    state = controller.state("a")
    first, second, behind = (state.leader, *(n for n in state.replicas if n != state.leader))
    controller.submit(isr_change(controller, "a", grow=False, node=behind))
    assert set(controller.state("a").isr) == {first, second}
    return first, second, behind


@pytest.mark.parametrize("sync", UNSYNCED)
@pytest.mark.parametrize("is_noticed_first", [True, False])
def test_the_recipe_that_split_jetstream(
    controller: DecidingController, sync: SyncPolicy, is_noticed_first: bool
) -> None:
    """Pause a minority, write, fail one, pause the rest, resume the minority: the two that are
    alive have lost and missed writes, and elect nobody. The paused one has all of them."""
    whole, failed, behind = two_in_sync(controller, sync=sync)
    controller.lose(behind)
    if is_noticed_first:
        controller.lose(whole)
        reboot(controller, failed)
    else:
        reboot(controller, failed)
        controller.lose(whole)
    start(controller, behind)
    state = controller.state("a")
    assert state.leader == NO_LEADER
    assert (*state.isr, *state.eligible) == (whole,)
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits.startswith(f"waits for node {whole}, the last in sync, which is not alive")
    start(controller, whole)
    after = controller.state("a")
    assert (after.leader, after.isr, after.unclean_epoch) == (whole, (whole,), 0)


@pytest.mark.parametrize("sync", UNSYNCED)
def test_where_all_machines_went_down_an_operator_decides(
    controller: DecidingController, sync: SyncPolicy
) -> None:
    first, second, behind = two_in_sync(controller, sync=sync)
    for node in (behind, second, first):
        reboot(controller, node)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (NO_LEADER, (), ())
    assert state.lossy == tuple(sorted((first, second)))
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits == (
        f"the machine of each replica in sync (on {min(first, second)}, {max(first, second)}) went "
        f"down before the node had stopped, and has lost what sync = {sync} had not synced; the "
        f"replicas on {', '.join(map(str, state.replicas))} may lack committed records, and "
        "unclean_election is off"
    )
    assert settle(controller.image) == ()
    controller.submit(Alter("a", {"unclean_election": True}))
    controller.elect_uncleanly()
    after = controller.state("a")
    assert after.leader in (first, second), "of equal logs theirs lack less: they were in sync"
    assert after.isr == (after.leader,)
    assert after.lossy == ()
    assert after.unclean_epoch == after.leader_epoch


def test_with_the_setting_the_node_leads_again_by_itself(controller: DecidingController) -> None:
    controller.create("a", replicas=1, unclean=True, sync=SyncPolicy.NEVER)
    controller.create("b", replicas=2, unclean=True, sync=SyncPolicy.NEVER)
    for node in controller.state("b").replicas:
        controller.lose(node)
    for node in controller.state("b").replicas:
        reboot(controller, node)
    controller.elect_uncleanly()
    assert controller.state("b").leader != NO_LEADER
    assert controller.state("b").unclean_epoch > 0
    assert controller.state("a").unclean_epoch == 0


def test_of_synced_logs_the_longest_leads(controller: DecidingController) -> None:
    """One of them may have lost what it had synced, by damage that nobody can tell."""
    first, second, behind = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    for node in (behind, second, first):
        reboot(controller, node)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (NO_LEADER, (first,), (second,))
    assert state.lossy == tuple(sorted((first, second)))
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits == (
        f"the machines of the replicas in sync (on {min(first, second)}, {max(first, second)}) "
        "went down; their logs are compared"
    )
    assert settle(controller.image) == ()
    controller.elect_longest({first: (3, 8), second: (3, 9), behind: (2, 20)})
    after = controller.state("a")
    assert (after.leader, after.isr, after.eligible, after.lossy) == (second, (second,), (), ())
    assert (after.leader_epoch, after.unclean_epoch) == (state.leader_epoch + 1, 0)


def test_equal_logs_stay_eligible(controller: DecidingController) -> None:
    first, second, behind = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    for node in (behind, second, first):
        reboot(controller, node)
    controller.elect_longest({first: (3, 9), second: (3, 9), behind: (3, 8)})
    after = controller.state("a")
    assert {after.leader, *after.eligible} == {first, second}
    assert (after.isr, after.lossy) == ((after.leader,), ())
    controller.lose(after.leader)
    assert controller.state("a").leader == after.eligible[0]


def test_a_replica_without_doubt_leads_at_once(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    controller.lose(second)
    controller.lose(first)
    reboot(controller, first)
    assert controller.state("a").leader == NO_LEADER
    (ref,) = find_troubles(controller.image).leaderless
    assert ref.waits.endswith(
        f"once those on {second} can be read; after a minute half of the replicas are enough"
    )
    start(controller, second)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), (first,))
    assert state.lossy == (first,), "it is not known to be whole before it follows"
    controller.submit(isr_change(controller, "a", grow=True, node=first))
    assert (controller.state("a").isr, controller.state("a").lossy) == ((first, second), ())


def test_a_doubtful_replica_whose_log_is_damaged_makes_way(controller: DecidingController) -> None:
    first, second, behind = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    for node in (behind, second, first):
        reboot(controller, node)
    state, stream_id = controller.state("a"), controller.image.streams["a"].id
    controller.submit(Resign(first, stream_id, 0, state.leader_epoch))
    after = controller.state("a")
    assert (after.leader, after.isr, after.eligible) == (NO_LEADER, (), (second,))
    controller.elect_longest({first: (3, 8), second: (3, 8), behind: (3, 7)})
    assert controller.state("a").leader in (first, second)


def test_an_operator_does_not_wait_for_doubtful_replicas(controller: DecidingController) -> None:
    first, second, behind = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    for node in (behind, second, first):
        controller.lose(node)
    reboot(controller, first)
    state, stream_id = controller.state("a"), controller.image.streams["a"].id
    assert state.leader == NO_LEADER
    assert unclean_candidates(controller.image, stream_id, state) == ()
    assert unclean_candidates(controller.image, stream_id, state, by_operator=True) == (first,)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_one_copy_leads_again_with_what_it_has(
    controller: DecidingController, is_noticed: bool
) -> None:
    controller.create("a", replicas=1, sync=SyncPolicy.NEVER)
    node = controller.state("a").leader
    if is_noticed:
        controller.lose(node)
    reboot(controller, node)
    state = controller.state("a")
    assert (state.leader, state.isr, state.unclean_epoch) == (node, (node,), 0)


def test_who_leaves_too_small_an_isr_may_lead(controller: DecidingController) -> None:
    """Nothing is committed without it, so it has all that was."""
    first, second, behind = two_in_sync(controller)
    controller.lose(second)
    assert controller.state("a").eligible == (second,)
    controller.lose(first)
    assert controller.state("a").leader == NO_LEADER
    start(controller, second)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), (first,))
    assert state.unclean_epoch == 0
    controller.submit(isr_change(controller, "a", grow=True, node=behind))
    assert controller.state("a").eligible == (), "these two may commit without it"


def test_who_is_alive_and_eligible_leads_at_once(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller)
    controller.submit(isr_change(controller, "a", grow=False, node=second))
    assert controller.state("a").eligible == (second,)
    controller.lose(first)
    assert controller.state("a").leader == second


def test_nobody_is_eligible_where_one_in_sync_commits(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller)
    controller.lose(second)
    controller.submit(Alter("a", {"min_isr": 1}))
    assert controller.state("a").eligible == ()
    controller.lose(first)
    start(controller, second)
    assert controller.state("a").leader == NO_LEADER


def test_who_is_eligible_leads_instead_of_a_damaged_log(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller)
    stream_id = controller.image.streams["a"].id
    controller.lose(second)
    state = controller.state("a")
    controller.submit(Resign(first, stream_id, 0, state.leader_epoch))
    state = controller.state("a")
    assert (state.leader, state.eligible) == (first, (second,)), (
        "it waits, or an operator repairs it"
    )
    start(controller, second)
    controller.submit(Resign(first, stream_id, 0, state.leader_epoch))
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), ())


def test_a_damaged_log_is_not_eligible(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller)
    stream_id = controller.image.streams["a"].id
    controller.submit(isr_change(controller, "a", grow=False, node=second))
    epoch = controller.state("a").leader_epoch
    controller.submit(Resign(second, stream_id, 0, epoch))
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (first, (first,), ())
    assert state.leader_epoch == epoch + 1, "the leader forgets how far its log went"


def test_who_makes_way_because_its_disk_is_full_stays_eligible(
    controller: DecidingController,
) -> None:
    first, second, _ = two_in_sync(controller)
    stream_id = controller.image.streams["a"].id
    epoch = controller.state("a").leader_epoch
    controller.submit(Resign(first, stream_id, 0, epoch, is_whole=True))
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), (first,))
    assert state.leader_epoch == epoch + 1
    controller.lose(second)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (first, (first,), (second,))


def test_an_eligible_node_leads_instead_of_one_whose_disk_is_full(
    controller: DecidingController,
) -> None:
    first, second, _ = two_in_sync(controller)
    stream_id = controller.image.streams["a"].id
    controller.submit(isr_change(controller, "a", grow=False, node=second))
    epoch = controller.state("a").leader_epoch
    controller.submit(Resign(first, stream_id, 0, epoch, is_whole=True))
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), (first,))


def test_who_was_not_eligible_does_not_become_so_with_a_full_disk(
    controller: DecidingController,
) -> None:
    first, second, third = two_in_sync(controller)
    stream_id = controller.image.streams["a"].id
    controller.submit(isr_change(controller, "a", grow=False, node=second))
    before = controller.state("a")
    controller.submit(Resign(third, stream_id, 0, before.leader_epoch, is_whole=True))
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (first, (first,), (second,))


def test_a_follower_whose_log_is_damaged_leaves_the_isr_in_another_epoch(
    controller: DecidingController,
) -> None:
    """Else its leader, which remembers where it was, would take it back at once."""
    first, second, _ = two_in_sync(controller)
    before, stream_id = controller.state("a"), controller.image.streams["a"].id
    controller.submit(Resign(second, stream_id, 0, before.leader_epoch))
    state = controller.state("a")
    assert (state.leader, state.isr) == (first, (first,))
    assert state.leader_epoch == before.leader_epoch + 1


def test_the_last_that_is_known_is_not_given_up(controller: DecidingController) -> None:
    first, second, _ = two_in_sync(controller, sync=SyncPolicy.NEVER)
    controller.lose(second)
    controller.lose(first)
    reboot(controller, second)
    with pytest.raises(CannotRemoveNode, match=r"only up-to-date copy of a 0; .*stream recover"):
        controller.submit(Leave(first, force=True))
    start(controller, first)
    reboot(controller, first, 3)
    controller.lose(first)
    controller.submit(Leave(first, force=True))
    state = controller.state("a")
    assert (first in state.replicas, state.lossy) == (False, (second,))


def test_steps_of_a_bounded_size_come_before_the_registration(
    controller: DecidingController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CHANGES_MAX", 10)
    for number in range(30):
        controller.create(f"s{number}", replicas=2, sync=SyncPolicy.NEVER)
    for node in (3, 2, 1):
        controller.lose(node)
    request = RegisterProcess(registration(1, 2), has_lost_writes=True)
    taking = steps_of(controller.image, request)
    commands = next(taking)
    sizes, kinds = [], []
    try:
        while True:
            sizes += [len(each.changes) for each in commands if isinstance(each, ChangePartitions)]
            kinds += [type(each).__name__ for each in commands]
            controller.commit(commands)
            commands = taking.send(controller.image)
    except StopIteration as last:
        controller.commit(last.value)
    held = [s for _, _, s in controller.image.partition_states() if 1 in s.replicas]
    assert held
    assert all(1 not in (*state.isr, *state.eligible) for state in held)
    assert max(sizes) <= 11
    assert kinds[-1] == "RegisterNode"
    assert settle(controller.image) == ()


def test_the_setting_can_be_altered_while_nodes_are_missing(controller: DecidingController) -> None:
    controller.create("a", replicas=3, sync=SyncPolicy.NEVER)
    for node in (1, 2, 3):
        controller.lose(node)
    for node in (1, 2):
        reboot(controller, node)
    controller.submit(Alter("a", {"unclean_election": True}))
    controller.elect_uncleanly()
    assert controller.state("a").leader in (1, 2)


def test_a_replica_that_is_in_sync_again_has_lost_nothing(controller: DecidingController) -> None:
    """Also while fewer replicas than needed are in sync."""
    controller.create("a", replicas=3, min_isr=3, sync=SyncPolicy.NEVER)
    leader, rebooted, _ = controller.state("a").replicas
    for node in controller.state("a").replicas[1:]:
        controller.lose(node)
        reboot(controller, node)
    controller.submit(isr_change(controller, "a", grow=True, node=rebooted))
    state = controller.state("a")
    assert set(state.isr) == {leader, rebooted}
    assert rebooted not in state.lossy


@pytest.mark.parametrize("sync", UNSYNCED)
def test_a_stream_syncs_every_message_only_once_those_are_there_that_have_them(
    controller: DecidingController, sync: SyncPolicy
) -> None:
    """A machine that went down before would not be known to have lost anything afterwards."""
    first, second, behind = two_in_sync(controller, sync=sync)
    controller.lose(behind)
    controller.submit(Alter("a", {"sync": "never" if sync is SyncPolicy.INTERVAL else "interval"}))
    controller.lose(second)
    assert controller.state("a").eligible == (second,)
    with pytest.raises(CannotAlter, match=rf"replicas on nodes {second} .* start them first"):
        controller.submit(Alter("a", {"sync": "always"}))
    controller.lose(first)
    with pytest.raises(CannotAlter, match=rf"nodes {min(first, second)}, {max(first, second)} "):
        controller.submit(Alter("a", {"sync": "always"}))
    start(controller, first)
    reboot(controller, second)
    controller.submit(Alter("a", {"sync": "always"}))
    assert (controller.state("a").leader, controller.state("a").eligible) == (first, ())
    reboot(controller, first, 3)
    controller.elect_longest()
    assert controller.state("a").leader == first


def test_one_replica_may_be_synced_from_now_on_while_its_node_is_away(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=1, sync=SyncPolicy.NEVER)
    node = controller.state("a").leader
    controller.lose(node)
    controller.submit(Alter("a", {"sync": "always"}))
    reboot(controller, node)
    assert controller.state("a").leader == node


def test_a_process_whose_loss_was_not_finished_does_not_lead_on(
    controller: DecidingController,
) -> None:
    """The loss of a node has steps in a large image, and the image may be small meanwhile."""
    controller.create("a", replicas=3)
    controller.create("alone", replicas=1, sync=SyncPolicy.NEVER)
    before = controller.state("a")
    node = before.leader
    controller.commit((FenceNode(node, controller.image.nodes[node].epoch),))
    reboot(controller, node)
    after = controller.state("a")
    assert node not in (after.leader, *after.isr)
    assert after.leader_epoch > before.leader_epoch
    assert settle(controller.image) == ()


def test_a_node_whose_loss_was_not_finished_is_removed_as_one_that_is_lost(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3)
    node = controller.state("a").leader
    controller.commit((FenceNode(node, controller.image.nodes[node].epoch),))
    controller.submit(Leave(node, force=True))
    state = controller.state("a")
    assert node not in (*state.replicas, *state.isr)
    assert controller.image.is_alive(state.leader)


def test_who_is_back_does_not_wait_for_members_that_are_not(
    controller: DecidingController,
) -> None:
    """The losses of two nodes have steps: each may be fenced before the other has left the ISR."""
    first, second, _ = two_in_sync(controller)
    nodes = controller.image.nodes
    for node in (first, second):
        controller.commit((FenceNode(node, nodes[node].epoch),))
    change = changes_after_loss(controller.image, first)
    assert change is not None
    controller.commit((change,))
    assert changes_after_loss(controller.image, second) is None
    assert controller.state("a").leader == NO_LEADER
    start(controller, second)
    state = controller.state("a")
    assert (state.leader, state.isr, state.eligible) == (second, (second,), (first,))
    assert settle(controller.image) == ()


@pytest.mark.parametrize("is_whole", [True, False])
def test_who_resigns_does_not_lead_before_its_log_was_compared(
    controller: DecidingController, is_whole: bool
) -> None:
    """Its disk is full, or its log is damaged. The others are not back."""
    first, second, behind = two_in_sync(controller, sync=SyncPolicy.ALWAYS)
    for node in (behind, second, first):
        controller.lose(node)
    reboot(controller, first)
    state, stream_id = controller.state("a"), controller.image.streams["a"].id
    controller.submit(Resign(first, stream_id, 0, state.leader_epoch, is_whole))
    after = controller.state("a")
    assert after.leader == NO_LEADER
    assert {*after.isr, *after.eligible} == ({first, second} if is_whole else {second})
