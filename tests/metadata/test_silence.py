"""Leaders that do not answer their followers: who is believed, and who leads then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.metadata.elections import changes_after_silence
from bascule.metadata.image import Image
from bascule.metadata.requests import LoseNode, RegisterProcess, ReplaceLeader, decide
from bascule.metadata.silence import SilenceReport, SilenceReports
from bascule.model import NO_LEADER
from support.deciding_controller import DecidingController, isr_change, registration

SECOND = 1_000_000_000
WINDOW = 5 * SECOND


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    made.create("a", replicas=3)
    return made


def epochs(image: Image, *nodes: int) -> dict[int, int]:
    return {node: image.nodes[node].epoch for node in nodes}


def followers(controller: DecidingController) -> list[int]:
    state = controller.state("a")
    return [node for node in state.replicas if node != state.leader]


def replaced(controller: DecidingController, *reporters: int) -> bool:
    """Whether these reports take the leader of `a` away."""
    image, leader = controller.image, controller.state("a").leader
    reports = epochs(image, *reporters)
    change = changes_after_silence(image, leader, image.nodes[leader].epoch, reports)
    return change is not None


def test_a_majority_of_the_other_members_elects_one_of_them(
    controller: DecidingController,
) -> None:
    before = controller.state("a")
    one, other = followers(controller)
    assert not replaced(controller)
    assert not replaced(controller, one), "one of two is no majority"
    assert not replaced(controller, before.leader, one), "the suspect has no say"
    assert replaced(controller, one, other)
    suspect = controller.image.nodes[before.leader]
    controller.submit(
        ReplaceLeader(suspect.node_id, suspect.epoch, epochs(controller.image, one, other))
    )
    after = controller.state("a")
    assert after.leader in (one, other)
    assert after.isr == tuple(sorted((one, other)))
    assert after.leader_epoch == before.leader_epoch + 1
    assert (after.version, after.unclean_epoch) == (before.version + 1, 0)


def test_only_members_of_the_isr_count(controller: DecidingController) -> None:
    one, other = followers(controller)
    controller.submit(isr_change(controller, "a", grow=False, node=other))
    assert not replaced(controller, other)
    assert replaced(controller, one), "the only other member is a majority"
    controller.submit(isr_change(controller, "a", grow=False, node=one))
    assert not replaced(controller, one, other), "nobody else may lead"


def test_reports_of_and_about_older_processes_do_not_count(
    controller: DecidingController,
) -> None:
    image, leader = controller.image, controller.state("a").leader
    one, other = followers(controller)
    epoch = image.nodes[leader].epoch
    stale = {**epochs(image, one, other), one: image.nodes[one].epoch - 1}
    assert changes_after_silence(image, leader, epoch, stale) is None
    assert changes_after_silence(image, leader, epoch - 1, epochs(image, one, other)) is None
    controller.submit(RegisterProcess(registration(leader, incarnation=2)))
    assert decide(controller.image, ReplaceLeader(leader, epoch, stale)) == ()


def test_lost_nodes_do_not_count(controller: DecidingController) -> None:
    image, leader = controller.image, controller.state("a").leader
    one, other = followers(controller)
    reports = epochs(image, one, other)
    lost = replace(image.nodes[other], alive=False)
    assert changes_after_silence(
        replace(image, nodes={**image.nodes, other: lost}),
        leader,
        image.nodes[leader].epoch,
        reports,
    ) is None  # fmt: skip
    controller.submit(LoseNode(leader, image.nodes[leader].epoch))
    assert controller.state("a").leader != NO_LEADER
    assert decide(
        controller.image, ReplaceLeader(leader, image.nodes[leader].epoch, reports)
    ) == ()  # fmt: skip


def test_a_leader_keeps_the_partitions_of_other_followers(
    controller: DecidingController,
) -> None:
    """Reports are about a node. Each partition has its own majority."""
    controller.create("many", replicas=2, partitions=12)
    first = controller.state("many")
    suspect, reporter = first.leader, next(n for n in first.replicas if n != first.leader)
    controller.submit(isr_change(controller, "many", grow=False, node=reporter))
    image = controller.image
    states = image.partitions[image.streams["many"].id]
    change = changes_after_silence(
        image, suspect, image.nodes[suspect].epoch, epochs(image, reporter)
    )
    assert change is not None
    many = [each.partition for each in change.changes if each.stream_id == b"many".ljust(16)]
    assert many
    assert 0 not in many
    assert set(many) == {
        index
        for index, state in enumerate(states)
        if state.leader == suspect and reporter in state.isr
    }


def report(reporter: int, suspect: int = 1, *, epoch: int = 7) -> SilenceReport:
    return SilenceReport(reporter, 10 + reporter, suspect, epoch, "silent for 1.5 s")


def test_reports_count_within_the_window_and_are_renewed() -> None:
    reports = SilenceReports(WINDOW)
    assert reports.add(report(2), 0)
    assert reports.add(report(3), 2 * SECOND)
    assert reports.reporters(1, 7, 2 * SECOND) == {2: 12, 3: 13}
    assert reports.reporters(1, 7, 6 * SECOND) == {3: 13}
    assert not reports.add(report(3), 6 * SECOND), "it goes on"
    assert reports.add(report(2), 6 * SECOND), "it had ended"
    assert reports.reporters(1, 7, 6 * SECOND) == {2: 12, 3: 13}


def test_reports_are_about_one_process() -> None:
    reports = SilenceReports(WINDOW)
    reports.add(report(2), 0)
    reports.add(report(3, epoch=8), 0)
    reports.add(report(2, suspect=3), 0)
    assert reports.reporters(1, 7, 0) == {2: 12}
    assert reports.reporters(1, 8, 0) == {3: 13}
    assert reports.add(report(2, epoch=8), 0), "another process is another case"
    assert reports.reporters(1, 7, 0) == {}
    reports.clear()
    assert reports.reporters(1, 8, 0) == {}
