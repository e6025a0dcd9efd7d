"""`SimReader`: a consumer without a group, which reads from leaders and closest replicas."""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError, CorruptData
from bascule.log_connection import LogConnection
from bascule.record.batch import scan_batches
from bascule.sim.cluster.checkers.log_contents import StoredBatch, records_of
from bascule.sim.cluster.consumers.consumer import CLIENT_PORT, RETRY_SECONDS, ClientMachine
from bascule.sim.cluster.consumers.read_history import ReadHistory
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.plan import rack_of
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.threads import sleep
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from bascule.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

FIRST_READER: Final = 200
"""Readers have machines with numbers from here on."""
TIMEOUT_SECONDS: Final = 5.0
WAIT_MS: Final = 500
FETCH_VERSION: Final = 12
"""The last one that names streams."""
METADATA_VERSION: Final = 9
FORGETS: Final = 0.2
"""How likely it is that a reader looks for the leader again after an answer, at any node: so it
comes to leaders that do not know that they are none any more."""
RESTARTS: Final = 0.005
"""How likely it is that it begins from the start of the log again."""
NO_PREFERENCE: Final = -1


class SimReader:
    """Reads one partition for the whole run."""

    def __init__(
        self,
        world: ClusterEnvironment,
        number: int,
        plan: StreamPlan,
        history: ReadHistory,
    ) -> None:
        prng = world.prng
        self.world = world
        self.machine = ClientMachine(world, FIRST_READER + number)
        self.key = plan.name, prng.below(plan.partitions)
        self.rack = rack_of(prng.below(2)) if world.plan.has_racks else ""
        self.position = 0
        self.has_read = 0
        """Records."""
        self._is_reset = True
        """Whether the position is where the log may begin, and nothing was read there."""
        self._epoch = -1
        """The highest leader epoch that it was told of."""
        self._history = history
        self._process: SimProcess | None = None

    def start(self) -> None:
        """Begin to read."""
        self._process = process = SimProcess(self.world.loop, self.machine, 1)
        process.context.run(process.start_thread, lambda: self._run(process), "reader")

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            self.world.end_process(process)

    @property
    def name(self) -> str:
        return f"reader {self.machine.node}"

    # -- on the thread of the process -----------------------------------------------------------

    def _run(self, process: SimProcess) -> None:
        while not process.is_dead:
            try:
                leader = self._find_leader()
                if leader >= 0:
                    self._read_from(leader, is_leader=True)
            except BasculeError:
                pass
            sleep(RETRY_SECONDS)

    def _find_leader(self) -> int:
        """What any node takes for the leader; -1: none. A client would not go back to an earlier
        epoch: this one does, and sends the latest epoch that it knows. Raises: BasculeError."""
        node = self.world.prng.pick(list(self.world.founders))
        connection = LogConnection(host_of(node), CLIENT_PORT, timeout=TIMEOUT_SECONDS)
        try:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=self.key[0])], allow_auto_topic_creation=False
            )
            answer: MetadataResponse = connection.request(request, version=METADATA_VERSION)
        finally:
            connection.close()
        for topic in answer.topics:
            for each in topic.partitions:
                if each.partition_index == self.key[1] and not each.error_code:
                    self._epoch = max(self._epoch, each.leader_epoch)
                    return each.leader_id
        return -1

    def _read_from(self, node: int, *, is_leader: bool) -> None:
        """Read from a node as long as it serves. Raises: BasculeError."""
        prng = self.world.prng
        connection = LogConnection(host_of(node), CLIENT_PORT, timeout=TIMEOUT_SECONDS)
        try:
            while not prng.happens(FORGETS):
                found = self._fetch(connection)
                if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._on_out_of_range(found.log_start_offset)
                elif found.error_code:
                    return
                elif found.preferred_read_replica != NO_PREFERENCE:
                    if is_leader:
                        self._read_from(found.preferred_read_replica, is_leader=False)
                    return
                else:
                    assert isinstance(found.records, bytes | memoryview | None)
                    self._take(bytes(found.records or b""), node)
                if prng.happens(RESTARTS):
                    self.position, self._is_reset = 0, True
                sleep(prng.log_uniform(0.002, 0.3))
        finally:
            connection.close()

    def _fetch(self, connection: LogConnection) -> FetchPartitionResponse:
        name, index = self.key
        asked = FetchPartition(
            index,
            current_leader_epoch=self._epoch,
            fetch_offset=self.position,
            partition_max_bytes=self.world.prng.pick((1, 10_000, 100_000)),
        )
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            rack_id=self.rack,
            topics=[FetchTopic(name, partitions=[asked])],
        )
        answer: FetchResponse = connection.request(request, version=FETCH_VERSION)
        ((found,),) = (topic.partitions for topic in answer.responses)
        return found

    def _on_out_of_range(self, start: int) -> None:
        if not self._is_reset:
            self._history.on_out_of_range(self.name, self.key, self.position, start)
        self.position, self._is_reset = max(start, 0), True

    def _take(self, data: bytes, node: int) -> None:
        """Check and keep the records of an answer. Raises: CorruptData where the disk of the node
        is not damaged."""
        try:
            for batch in scan_batches(data, origin=f"answer of node {node}"):
                for record in records_of(StoredBatch(batch.header, data[batch.start : batch.end])):
                    if record.offset >= self.position:
                        self._history.on_read(self.name, self.key, self.position, record)
                        self.position, self._is_reset = record.offset + 1, False
                        self.has_read += 1
                self.position = max(self.position, batch.header.end_offset)
        except CorruptData as error:
            if not self.world.is_damaged(node):
                self.world.loop.report("readers get no damage", f"{self.name}: {error}")
            raise
