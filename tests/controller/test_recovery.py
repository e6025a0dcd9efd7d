"""What `recover` shows and does where the replicas in sync are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bascule.cluster_version import NEWEST
from bascule.controller.unclean.log_ends import LogEnds, SaidLogEnd
from bascule.controller.unclean.recovery import Recovery
from bascule.errors import Broken, NeedsClusterVersion, UnknownPartition
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, RaiseVersion, Reassign, RegisterProcess
from bascule.metadata.troubles import find_troubles
from bascule.model import NO_LEADER, NodeRegistration, PartitionState, StreamDefinition
from bascule.operation_results import PartitionRecovery
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController, registration


def of_this_release(node: int, incarnation: int = 1) -> NodeRegistration:
    return replace(registration(node, incarnation), cluster_version_max=NEWEST)


class Cluster:
    """Four nodes. Stream `a` is on three of them, or on as many as are named, and another one is
    asked."""

    def __init__(self, replicas: int = 3) -> None:
        self.decisions = DecidingController()
        for node in (1, 2, 3, 4):
            self.decisions.submit(RegisterProcess(of_this_release(node)))
        self.decisions.submit(RaiseVersion((1, 2, 3, 4)))
        self.decisions.create("a", replicas=replicas, min_isr=1)
        asked = min({1, 2, 3, 4} - set(self.state.replicas))
        self.said: dict[int, SaidLogEnd | None] = {}
        """By node; without an entry it does not answer."""
        self.in_force = 0
        """Decisions that were waited for."""
        self.recovery = Recovery(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            LogEnds(asked, Partitions(), self),  # type: ignore[arg-type]
            self.wait_in_force,
        )

    # What the recovery uses of the metadata, the views and the other nodes.

    @property
    def image(self) -> Image:
        return self.decisions.image

    async def submit(self, request: ControllerRequest) -> int:
        return self.decisions.submit(request)

    def definition(self, name: str) -> StreamDefinition:
        return self.image.streams[name]

    def states(self, stream_id: bytes) -> tuple[PartitionState, ...]:
        return self.image.partitions[stream_id]

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if node not in self.said:
            raise Broken(f"node {node} does not answer")
        keys = msgspec.msgpack.decode(body, type=list[tuple[bytes, int]])
        return msgspec.msgpack.encode([self.said[node] for _ in keys])

    async def wait_in_force(self, definition: StreamDefinition, index: int) -> None:
        self.in_force += 1

    # Scenes.

    @property
    def state(self) -> PartitionState:
        return self.decisions.state("a")

    def lose_the_last_in_sync(self) -> tuple[int, int, int]:
        """The other two replicas, which are back, and the lost one."""
        last, first, second = self.state.replicas
        for node in (first, second, last):
            self.decisions.lose(node)
        for node in (first, second):
            self.decisions.submit(RegisterProcess(of_this_release(node, 2)))
        assert self.state.leader == NO_LEADER
        return first, second, last

    def recover(self, *, accept_loss: bool, **options: Any) -> list[PartitionRecovery]:
        asked = {"partition": None, **options}
        return asyncio.run(self.recovery.recover("a", accept_loss=accept_loss, **asked))

    def say(self, ends: Mapping[int, int]) -> None:
        self.said = {
            node: SaidLogEnd(0, end, last_ms=1_000 + end, committed_offset=end - 1)
            for node, end in ends.items()
        }


def test_a_partition_with_a_leader_is_not_listed() -> None:
    assert Cluster().recover(accept_loss=True) == []


def test_what_would_be_lost_is_shown_and_nothing_is_done() -> None:
    cluster = Cluster()
    first, second, last = cluster.lose_the_last_in_sync()
    cluster.say({first: 40, second: 80})
    version = cluster.state.version
    (found,) = cluster.recover(accept_loss=False)
    assert (found.leader, found.is_done, found.problem) == (second, False, "")
    assert f"waits for node {last}" in found.why
    assert {each.node_id: each.end_offset for each in found.replicas} == {first: 40, second: 80}
    shown = next(each for each in found.replicas if each.node_id == second)
    assert (shown.last_ms, shown.committed_offset) == (1_080, 79)
    assert (cluster.state.version, cluster.state.leader) == (version, NO_LEADER)


def test_the_longest_log_leads_and_nobody_has_to_acknowledge_the_loss_again() -> None:
    cluster = Cluster()
    first, second, last = cluster.lose_the_last_in_sync()
    cluster.say({first: 40, second: 80})
    (found,) = cluster.recover(accept_loss=True)
    assert (found.leader, found.is_done, cluster.in_force) == (second, True, 1)
    state = cluster.state
    assert (state.leader, state.isr) == (second, (second,))
    assert state.unclean_epoch == state.leader_epoch, "those that come back remove records"
    assert find_troubles(cluster.image).unclean == ()
    assert last in state.replicas


def test_a_replica_that_does_not_answer_is_waited_for() -> None:
    cluster = Cluster()
    first, second, _ = cluster.lose_the_last_in_sync()
    cluster.say({first: 40})
    (found,) = cluster.recover(accept_loss=True)
    assert f"node {second} does not say yet where its log ends" in found.problem
    assert cluster.state.leader == NO_LEADER
    cluster.said[second] = SaidLogEnd(-1, 0, has_failed=True)
    (found,) = cluster.recover(accept_loss=True)
    assert (found.leader, found.is_done) == (first, True)


def test_without_a_usable_replica_it_says_so() -> None:
    cluster = Cluster()
    first, second, _ = cluster.lose_the_last_in_sync()
    cluster.said = dict.fromkeys((first, second), SaidLogEnd(-1, 0, has_failed=True))
    (found,) = cluster.recover(accept_loss=True)
    assert "have failed" in found.problem
    for node in (first, second):
        cluster.decisions.lose(node)
    (found,) = cluster.recover(accept_loss=True)
    assert found.problem.startswith("no replica is alive: start node")


def test_a_replica_that_was_in_sync_and_is_back_leads_instead() -> None:
    cluster = Cluster()
    first, second, last = cluster.lose_the_last_in_sync()
    cluster.say({first: 40, second: 80})

    async def scene() -> list[PartitionRecovery]:
        waiting = cluster.recovery.recover("a", partition=None, accept_loss=True)
        submit = cluster.submit

        async def late(request: ControllerRequest) -> int:
            cluster.decisions.submit(RegisterProcess(of_this_release(last, 2)))
            return await submit(request)

        cluster.submit = late  # type: ignore[method-assign]
        return await waiting

    (found,) = asyncio.run(scene())
    assert cluster.state.leader == last
    assert (found.is_done, found.leader) == (False, last)
    assert "a replica in sync is back" in found.problem


def test_an_election_that_completes_a_move_has_given_up_what_was_lost() -> None:
    """The only replica is lost, and the partition is given to a living node, whose log is empty."""
    cluster = Cluster(replicas=1)
    (lost,) = cluster.state.replicas
    cluster.decisions.lose(lost)
    (found,) = cluster.recover(accept_loss=True)
    taking = cluster.image.usable()[0]
    assert found.problem == (
        f"no replica is alive: start node {lost}. If they are lost for good, give the partition up "
        f"and begin it anew: `bascule stream reassign a --partition 0 --replicas-on {taking}`, "
        "then `bascule stream recover a --accept-loss`; or delete the stream"
    )
    cluster.decisions.submit(Reassign("a", 0, (taking,)))
    cluster.recovery = Recovery(
        cluster,  # type: ignore[arg-type]
        cluster,  # type: ignore[arg-type]
        LogEnds(4 if taking != 4 else 3, Partitions(), cluster),  # type: ignore[arg-type]
        cluster.wait_in_force,
    )
    cluster.said = {taking: SaidLogEnd(-1, 0)}
    (found,) = cluster.recover(accept_loss=True)
    assert (found.is_done, found.leader, found.problem) == (True, taking, "")
    assert (cluster.state.replicas, cluster.state.target) == ((taking,), ())


def test_it_waits_for_nodes_of_an_earlier_release() -> None:
    cluster = Cluster()
    first, second, _ = cluster.lose_the_last_in_sync()
    cluster.say({first: 40, second: 80})
    cluster.decisions.image = replace(cluster.image, cluster_version=1)
    assert cluster.recover(accept_loss=False)[0].leader == second
    with pytest.raises(NeedsClusterVersion, match="needs cluster version 2"):
        cluster.recover(accept_loss=True)


def test_partitions_that_do_not_exist() -> None:
    with pytest.raises(UnknownPartition):
        Cluster().recover(accept_loss=False, partition=1)
