"""How a leader has the in-sync set of a partition changed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster import isr_keeper
from bascule.controller.cluster.isr_keeper import REFUSALS_LOGGED, IsrKeeper
from bascule.errors import Broken
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, decide
from bascule.model import PartitionState
from support.deciding_controller import DecidingController, isr_change
from support.metadata_groups import until

SECONDS_MAX = 10.0


@dataclass
class Group:
    """A metadata group whose first answers are lost: the requests were committed or not."""

    deciding: DecidingController
    lost: int = 0

    @property
    def image(self) -> Image:
        return self.deciding.image

    async def submit(self, request: ControllerRequest) -> int:
        if self.lost:
            self.lost -= 1
            raise Broken("the disk of the controller is full")
        return self.deciding.commit(decide(self.image, request))


@dataclass
class Wanted:
    """The change to propose for the only partition of the stream `s`."""

    deciding: DecidingController
    isr: tuple[int, ...]
    node_epochs: dict[int, int]
    failed: list[PartitionState] = field(default_factory=list)
    is_proposed: bool = False

    def __post_init__(self) -> None:
        self.state = self.deciding.state("s")

    @property
    def partition(self) -> Any:
        return SimpleNamespace(
            definition=self.deciding.image.streams["s"],
            index=0,
            commitment=SimpleNamespace(
                on_isr_proposed=self._on_proposed, on_isr_failed=self._on_failed
            ),
        )

    def _on_proposed(self, isr: tuple[int, ...], state: PartitionState) -> bool:
        before, self.is_proposed = self.is_proposed, True
        return not before

    def _on_failed(self, state: PartitionState) -> bytes:
        self.failed.append(state)
        self.is_proposed = False
        return b""


@pytest.fixture
def deciding(monkeypatch: pytest.MonkeyPatch) -> DecidingController:
    """Three nodes and a stream on all of them, of which one is not in sync."""
    monkeypatch.setattr(isr_keeper, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(isr_keeper, "RETRY_SECONDS", 0.001)
    made = DecidingController()
    made.register(1, 2, 3)
    made.create("s", replicas=3)
    other = next(node for node in (1, 2, 3) if node != made.state("s").leader)
    made.submit(isr_change(made, "s", grow=False, node=other))
    return made


def keep(group: Group, wanted: Wanted, until_done: Any) -> None:
    async def scene() -> None:
        leader = wanted.state.leader
        keeper = IsrKeeper(
            leader,
            cast(Any, group),
            node_epoch=lambda: group.image.nodes[leader].epoch,
            wanted=lambda: [cast(Any, wanted)],
            send=lambda _: None,
        )
        run = asyncio.create_task(keeper.run())
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await until(until_done)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    asyncio.run(scene())


def epochs(deciding: DecidingController) -> dict[int, int]:
    return {number: node.epoch for number, node in deciding.image.nodes.items()}


def test_an_error_is_no_refusal(deciding: DecidingController) -> None:
    """An earlier attempt may be committed yet: new members count until the controller decides."""
    group = Group(deciding, lost=5)
    wanted = Wanted(deciding, (1, 2, 3), epochs(deciding))
    keep(group, wanted, lambda: deciding.state("s").isr == (1, 2, 3))
    assert not wanted.failed


def test_a_change_is_logged_with_its_reason(
    deciding: DecidingController, caplog: pytest.LogCaptureFixture
) -> None:
    before = deciding.state("s").isr
    (joining,) = {1, 2, 3} - {*before}
    with caplog.at_level(logging.INFO):
        for isr in ((1, 2, 3), before):
            wanted = Wanted(deciding, isr, epochs(deciding))
            keep(Group(deciding), wanted, lambda isr=isr: deciding.state("s").isr == isr)
    reasons = [vars(each)["reason"] for each in caplog.records if each.msg == "isr changed"]
    assert reasons == [
        f"node {joining} has caught up",
        f"node {joining} has been behind for replica_lag_ms_max",
    ]


def test_a_change_that_is_refused_again_and_again_is_reported(
    deciding: DecidingController, caplog: pytest.LogCaptureFixture
) -> None:
    """With what a person needs to see which node it is."""
    found = epochs(deciding)
    (joining,) = {1, 2, 3} - set(deciding.state("s").isr)
    wanted = Wanted(deciding, (1, 2, 3), {**found, joining: found[joining] - 1})
    with caplog.at_level(logging.WARNING):
        keep(Group(deciding), wanted, lambda: len(wanted.failed) > 2 * REFUSALS_LOGGED)
    (record,) = [each for each in caplog.records if each.msg == "isr refused"]
    said = vars(record)
    assert said["node_epochs"][joining] != said["alive"][joining]
    assert deciding.state("s").isr != (1, 2, 3)
