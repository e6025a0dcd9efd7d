"""When a replica with a damaged log heals, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bascule.controller.cluster.healing import healer as module
from bascule.controller.cluster.healing.evidence import KEPT_BYTES_MAX, KEPT_MAX, keep_evidence
from bascule.controller.cluster.healing.healer import Healer
from bascule.controller.cluster.healing.history import (
    PARTITION_MAX,
)
from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.views import HEALS, LEADER_DAMAGED
from bascule.controller.directories import StreamDirectories
from bascule.errors import CorruptData, Indeterminate, PartitionFailed
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, Resign, decide
from bascule.model import NO_LEADER, Cleanup, PartitionState, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replication.leader import LeaderReplication
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.segment import LogPosition
from bascule.storage.truncation.salvage import readable_part
from support.deciding_controller import DecidingController, isr_change
from support.metadata_groups import until
from support.stored_batches import DIRECTORY, append, open_log

SECONDS_MAX = 10.0


class Group:
    """A metadata group of one controller, which does not answer at first."""

    def __init__(self, deciding: DecidingController) -> None:
        self._deciding = deciding
        self.lost = 1
        self.is_open = True
        self.asked = 0

    @property
    def image(self) -> Image:
        return self._deciding.image

    async def submit(self, request: ControllerRequest) -> int:
        self.asked += 1
        if self.lost or not self.is_open:
            self.lost = max(self.lost - 1, 0)
            raise Indeterminate("no controller has answered")
        return self._deciding.commit(decide(self.image, request))


class Stopping:
    """A log syncer that stops partitions at once."""

    def stop_partition(self, partition: Partition, cause: CorruptData) -> None:
        partition.fail(str(cause), is_damage=True)


class LogsClosed:
    """A reconciler that has closed the logs of a stream."""

    def close_logs(self, partitions: list[Partition]) -> None:
        pass


class HealerUnderTest:
    """Three nodes, a stream of three replicas, and the healer of one of them, which heals nothing
    but notes the state in which it would."""

    def __init__(self, node: int, deciding: DecidingController) -> None:
        self.deciding, self.node = deciding, node
        self.group = Group(deciding)
        self.partitions = Partitions()
        self.partitions.bind(asyncio.get_running_loop())
        self.files, self.clock = SimFiles(RealRandom(1)), SimClock(1_000)
        self.files.make_dirs("/data")
        follower = ImageFollower(node, self.partitions, cast(Any, None), cast(Any, self.group))
        self.follower = follower
        self.healer = Healer(
            node,
            self.partitions,
            cast(Any, None),
            cast(Any, self.group),
            StreamDirectories(self.files, "/data"),
            self.clock,
            follower,
            cast(Any, Stopping()),
            data_directory="/data",
            why_not_served=self._why_not_served,
        )
        self.serves: Callable[[], bool] = lambda: True
        """Whether the leader says that its replica serves."""
        self.why_not = "its replica has failed"
        self.asked_leader = 0
        self.healed: list[tuple[int, ...]] = []
        self.epochs: list[int] = []
        self.healer._heal = self._note  # type: ignore[method-assign]
        self.partition = self.add()

    def add(self) -> Partition:
        partition = Partition(
            self.definition, 0, log=None, failure=None, clock=self.clock,
            on_changed=self.partitions.notify_watchers, hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        self.partitions.add((partition,))
        return partition

    @property
    def definition(self) -> StreamDefinition:
        return self.deciding.image.streams["s"]

    async def _why_not_served(self, stream_id: bytes, index: int, state: PartitionState) -> str:
        assert (stream_id, index) == (self.definition.id, 0)
        assert state.leader not in (NO_LEADER, self.node)
        self.asked_leader += 1
        return "" if self.serves() else self.why_not

    async def _note(self, key: Any, partition: Partition) -> bool:
        state = self.deciding.state("s")
        self.healed.append(state.isr)
        self.epochs.append(state.leader_epoch)
        self.healer._history.add(key)
        self.add()
        return True

    def damage(self) -> None:
        self.partition.fail("a bad CRC", is_damage=True)

    async def close(self) -> None:
        self.healer.close()
        await self.follower.close()


def play(
    scene: Callable[[HealerUnderTest], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    leads: bool,
) -> None:
    monkeypatch.setattr(module, "FENCE_RETRY_SECONDS", 0.001)
    monkeypatch.setattr("bascule.controller.cluster.image_follower.RETRY_SECONDS_MIN", 0.001)

    async def run() -> None:
        deciding = DecidingController()
        deciding.register(1, 2, 3)
        deciding.create("s", replicas=3)
        leader = deciding.state("s").leader
        node = leader if leads else next(n for n in (1, 2, 3) if n != leader)
        tested = HealerUnderTest(node, deciding)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scene(tested)
        finally:
            await tested.close()

    asyncio.run(run())


@pytest.mark.parametrize("leads", [True, False])
def test_a_replica_heals_once_it_is_out_of_sync(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        before = tested.deciding.state("s")
        tested.damage()
        await until(lambda: tested.node not in tested.deciding.state("s").isr)
        tested.healer.on_failed(tested.partition)  # as the next image has it called
        await until(lambda: tested.healed)
        assert tested.node not in tested.healed[0]
        assert tested.deciding.state("s").leader != tested.node
        assert tested.epochs[0] > before.leader_epoch

    play(scene, monkeypatch, leads=leads)


def test_a_replica_that_was_not_in_sync_begins_another_leader_epoch_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader may be about to take it in, as it remembers where the log ended."""

    async def scene(tested: HealerUnderTest) -> None:
        tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=tested.node))
        before = tested.deciding.state("s")
        assert tested.node not in before.isr
        growing = isr_change(tested.deciding, "s", grow=True, node=tested.node)
        tested.damage()
        await until(lambda: tested.healed)
        assert tested.epochs == [before.leader_epoch + 1]
        tested.deciding.submit(growing)  # of the epoch before
        assert tested.node not in tested.deciding.state("s").isr

    play(scene, monkeypatch, leads=False)


def test_nothing_is_removed_before_the_controller_has_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        tested.group.is_open = False
        tested.damage()
        await until(lambda: tested.group.asked >= 5)
        tested.healer.on_failed(tested.partition)
        assert tested.healed == []
        assert not tested.healer._patients[tested.definition.id, 0].task

    play(scene, monkeypatch, leads=True)


def test_the_last_replica_does_not_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.lose(node)
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        assert tested.partition.failure is None, "what can be read is served"
        tested.damage()
        tested.healer.on_failed(tested.partition)
        assert not tested.healer._patients[tested.definition.id, 0].task
        assert tested.healed == []
        assert tested.deciding.state("s").leader == tested.node

    play(scene, monkeypatch, leads=True)


def lead(tested: HealerUnderTest, follower: int) -> None:
    """Have the replica lead, and one follower fetch from it."""
    state = tested.deciding.state("s")
    replication = LeaderReplication(
        tested.node, state, min_isr=2, own_synced=5, now_ns=0, lag_ns_max=1, epoch_start=0
    )
    epoch = tested.deciding.image.nodes[follower].epoch
    replication.on_fetch(follower, epoch, 3, 3, 0, 5)
    tested.partition.commitment.replication = replication


@pytest.mark.parametrize("fetches", [True, False])
def test_a_damaged_replica_stops_once_another_one_has_all_records(
    fetches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is in sync, or eligible and fetches: it could not fetch what is behind the damage."""
    monkeypatch.setattr(module, "NEEDED_SECONDS", 0.001)

    async def scene(tested: HealerUnderTest) -> None:
        others = {1, 2, 3} - {tested.node}
        for node in others:
            tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=node))
            tested.deciding.lose(node)
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        assert tested.partition in tested.healer._needed
        (eligible,) = tested.deciding.state("s").eligible
        tested.deciding.register(*others)
        await asyncio.wait([asyncio.create_task(tested.healer._stop_needed())], timeout=0.05)
        assert tested.partition.failure is None, "none of them may have opened its log"
        if not fetches:
            (caught_up,) = others - {eligible}
            tested.deciding.submit(isr_change(tested.deciding, "s", grow=True, node=caught_up))
        else:
            lead(tested, eligible)
        await until(lambda: tested.partition.failure is not None)
        assert tested.partition not in tested.healer._needed
        assert tested.healer.counts.found == 1

    play(scene, monkeypatch, leads=True)


def test_a_process_that_has_not_fetched_yet_replaces_no_damaged_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before it had, but the log of this one may turn out to be unusable."""

    async def scene(tested: HealerUnderTest) -> None:
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=node))
        (eligible,) = tested.deciding.state("s").eligible
        lead(tested, eligible)
        tested.deciding.lose(eligible)
        tested.deciding.register(eligible)
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        assert tested.partition.failure is None
        assert tested.partition in tested.healer._needed

    play(scene, monkeypatch, leads=True)


def test_a_damaged_replica_that_was_replaced_does_not_stop_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cause would be one to resign for."""
    monkeypatch.setattr(module, "NEEDED_SECONDS", 0.001)

    async def scene(tested: HealerUnderTest) -> None:
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.lose(node)
        replaced = tested.partition
        tested.partitions.on_damaged(replaced, CorruptData("f", 1, "a", "b"))
        assert replaced in tested.healer._needed
        tested.add()
        tested.deciding.register(*{1, 2, 3} - {tested.node})
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.submit(isr_change(tested.deciding, "s", grow=True, node=node))
        await until(lambda: not tested.healer._needed)
        assert replaced.failure is None
        assert tested.node in tested.deciding.state("s").isr
        tested.partitions.on_damaged(replaced, CorruptData("f", 1, "a", "b"))
        assert replaced.failure is None
        assert tested.healer.counts.found == 1

    play(scene, monkeypatch, leads=True)


def test_a_needed_replica_that_fails_otherwise_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else is in sync, and it would be looked at for ever."""
    monkeypatch.setattr(module, "NEEDED_SECONDS", 0.001)

    async def scene(tested: HealerUnderTest) -> None:
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.lose(node)
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        assert tested.partition in tested.healer._needed
        tested.partition.fail("a sync failed")
        await until(lambda: tested.healer._waiting is None)

    play(scene, monkeypatch, leads=True)


def test_nothing_is_removed_before_the_leader_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been elected before it had opened its log, which may be damaged, too."""

    async def scene(tested: HealerUnderTest) -> None:
        tested.serves = lambda: False
        tested.damage()
        await until(lambda: tested.node not in tested.deciding.state("s").isr)
        tested.healer.on_failed(tested.partition)
        await until(lambda: tested.asked_leader >= 5)
        assert tested.healed == []
        assert not tested.healer._turn.locked(), "others are healed meanwhile"
        tested.serves = lambda: True
        await until(lambda: tested.healed)
        assert tested.healer.counts.failures == 0

    play(scene, monkeypatch, leads=True)


def test_nothing_is_removed_while_the_log_of_the_leader_is_damaged_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them may have what the other one lacks."""

    async def scene(tested: HealerUnderTest) -> None:
        healer = tested.healer
        tested.serves, tested.why_not = lambda: False, LEADER_DAMAGED
        tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=tested.node))
        tested.damage()
        await until(lambda: tested.asked_leader >= 5)
        assert tested.healed == []
        assert healer.standing(tested.partition) == f"waits: {LEADER_DAMAGED}"
        assert healer.counts.failures == 1, "it is said once"
        tested.serves = lambda: True  # another replica leads
        await until(lambda: tested.healed)
        assert healer.counts.failures == 1

    play(scene, monkeypatch, leads=False)


def test_a_replica_waits_no_longer_for_a_damaged_leader_that_leads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        tested.serves, tested.why_not = lambda: False, LEADER_DAMAGED
        tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=tested.node))
        tested.damage()
        await until(lambda: "waits" in tested.healer.standing(tested.partition))
        for node in {1, 2, 3} - {tested.node}:
            tested.deciding.lose(node)
        patient = tested.healer._patients[tested.definition.id, 0]
        await until(lambda: patient.task is None)
        assert tested.healer.standing(tested.partition) == HEALS
        assert tested.healed == []

    play(scene, monkeypatch, leads=False)


def test_damage_of_a_needed_replica_is_told_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that cannot get on accuses it each 5 s."""
    monkeypatch.setattr(module, "NEEDED_SECONDS", 0.001)

    async def scene(tested: HealerUnderTest) -> None:
        others = {1, 2, 3} - {tested.node}
        assert tested.healer.standing(tested.partition) == ""
        for node in others:
            tested.deciding.lose(node)
        for _ in range(3):
            tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        assert tested.healer.counts.found == 1
        said = tested.healer.standing(tested.partition)
        assert "f is corrupt at byte 1" in said
        assert said.endswith("nobody else has all of its records: it serves what can be read")
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 9, "a", "b"))
        assert tested.healer.counts.found == 2
        assert "at byte 9" in tested.healer.standing(tested.partition)
        tested.deciding.register(*others)
        for node in others:
            tested.deciding.submit(isr_change(tested.deciding, "s", grow=True, node=node))
        await until(lambda: not tested.healer._needed)
        assert "serves" not in tested.healer.standing(tested.partition), "it has stopped"

    play(scene, monkeypatch, leads=True)


@pytest.mark.parametrize("change", ["leader fails", "another leader", "none"])
def test_a_leader_that_serves_no_more_once_the_log_is_read_has_nothing_removed(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large log takes minutes."""

    async def scene(tested: HealerUnderTest) -> None:
        healer, removed = tested.healer, list[str]()

        def removing(partition: Partition, directory: str, part: object) -> Any:
            removed.append(directory)
            raise OSError("that is enough")

        def serves() -> bool:
            if change == "another leader" and tested.asked_leader == 1:
                state = tested.deciding.state("s")
                stream_id = tested.definition.id
                tested.deciding.submit(Resign(state.leader, stream_id, 0, state.leader_epoch))
            return change != "leader fails"

        async def wait(*_: object) -> None:
            """Leave the healing to the scene."""

        monkeypatch.setattr(healer, "_run", wait)
        tested.deciding.submit(isr_change(tested.deciding, "s", grow=False, node=tested.node))
        directory = healer._directories.partition("s", 0)
        log = PartitionLog.open(tested.files, directory, LogConfig(), tested.clock)
        append(log, 3)
        log.close()
        tested.partition.fail("a bad CRC", is_damage=True)
        tested.serves = serves
        monkeypatch.setattr(healer, "_replace", removing)
        monkeypatch.setattr(healer, "_reconciler", LogsClosed())
        healing = Healer._heal(healer, (tested.definition.id, 0), tested.partition)
        if change == "none":
            with pytest.raises(OSError, match="enough"):
                await healing
        else:
            assert not await healing
        assert bool(removed) == (change == "none")
        assert bool(healer._history.why_not((tested.definition.id, 0))) is False
        assert tested.asked_leader == 1

    play(scene, monkeypatch, leads=False)


def test_damage_that_is_read_stops_a_replica_that_another_one_can_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        tested.partitions.on_damaged(tested.partition, CorruptData("f", 1, "a", "b"))
        failure = tested.partition.failure
        assert isinstance(failure, PartitionFailed)
        assert failure.is_damage

    play(scene, monkeypatch, leads=True)


def test_a_replica_is_not_healed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(tested: HealerUnderTest) -> None:
        key = tested.definition.id, 0
        for _ in range(PARTITION_MAX):
            tested.healer._history.add(key)
        tested.damage()
        await until(lambda: tested.node not in tested.deciding.state("s").isr)
        tested.healer.on_failed(tested.partition)
        await until(lambda: tested.healer.counts.failures)
        assert tested.healed == []
        assert "3 times within 24 h" in tested.healer.standing(tested.partition)

        # It is said once, and not with each change of what the image says of the partition.
        patient = tested.healer._patients[key]
        await until(lambda: patient.task is None)
        tested.healer.on_failed(tested.partition)
        await until(lambda: patient.task is None)
        assert tested.healer.counts.failures == 1
        assert "3 times within 24 h" in tested.healer.standing(tested.partition)

    play(scene, monkeypatch, leads=False)


def test_evidence_is_bounded() -> None:
    files = SimFiles(RealRandom(1))
    files.make_dirs("/data/log")
    files.open("/data/log/00000000000000000007.log", create=True).append(
        b"good" + b"x" * (KEPT_BYTES_MAX + 5)
    )
    end = LogPosition(9, 7, 4)
    for number in range(1, KEPT_MAX + 4):
        path, size = keep_evidence(files, "/data/aside", "/data/log", end, "a bad CRC")
        assert (Path(path).name, size) == (f"damage.{number}", KEPT_BYTES_MAX)
    assert len(files.list_dir("/data/aside")) == KEPT_MAX
    head, _, kept = files.read_bytes(path).partition(b"\n")
    assert b'"position": 4' in head
    assert kept == b"x" * KEPT_BYTES_MAX


@pytest.mark.parametrize("may_be_compacted", [False, True])
def test_a_log_that_may_be_compacted_is_copied_from_its_beginning(
    may_be_compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other replicas may have removed a tombstone that came behind the damage: its key would stay
    in what was before."""

    async def scene(tested: HealerUnderTest) -> None:
        files = tested.files
        log = open_log(files)
        first, second = append(log, 3), append(log, 2)
        log.close()
        files.open(f"{DIRECTORY}/{0:020d}.log").write_at(len(first) + 30, b"\xff")
        part = readable_part(
            files, DIRECTORY, index_interval_bytes=4_096, gaps_allowed=may_be_compacted
        )
        assert part is not None
        assert part.end.offset == 3
        done = tested.healer._replace(tested.partition, DIRECTORY, part)
        assert done.end_offset == (0 if may_be_compacted else 3)
        assert done.kept_bytes == len(second)
        assert open_log(files).end.offset == done.end_offset

    play(scene, monkeypatch, leads=False)


def test_a_log_that_others_may_have_compacted_is_copied_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This one was not compacted yet: its node was away."""

    async def scene(tested: HealerUnderTest) -> None:
        files = tested.files
        log = open_log(files)
        first = append(log, 3)
        append(log, 2)
        log.close()
        files.open(f"{DIRECTORY}/{0:020d}.log").write_at(len(first) + 30, b"\xff")
        part = readable_part(files, DIRECTORY, index_interval_bytes=4_096, gaps_allowed=False)
        assert part is not None
        assert not part.may_be_compacted
        config = replace(tested.definition.config, cleanup=(Cleanup.COMPACT,))
        tested.partition.configure(replace(tested.definition, config=config))
        assert tested.healer._replace(tested.partition, DIRECTORY, part).end_offset == 0
        assert open_log(files).end.offset == 0

    play(scene, monkeypatch, leads=False)
