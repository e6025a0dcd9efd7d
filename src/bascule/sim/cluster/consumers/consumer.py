"""`SimConsumer`: one consumer of a group, through all its processes."""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError
from bascule.log_connection import LogConnection
from bascule.sim.cluster.consumers.history import ANSWERED, GroupHistory
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.plan import GroupPlan
from bascule.sim.cluster.world.loop import NS
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.threads import sleep
from bascule.wire.error_codes import ErrorCode, code_name
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from bascule.wire.messages.group.consumer_protocol import (
    ConsumerSubscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from bascule.wire.messages.group.leave_group import LeaveGroupRequest, MemberIdentity
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

FIRST_NODE: Final = 100
"""Members have machines with numbers from here on."""
CLIENT_PORT: Final = 9092
SESSION_MS: Final = 6_000
"""The least that a coordinator accepts."""
REBALANCE_MS: Final = 3_000
LATE_NS: Final = 20 * NS
"""No join of an earlier process comes later."""
TIMEOUT_SECONDS: Final = 5.0
"""More than a join takes."""
RETRY_SECONDS: Final = 0.2
STEP_SECONDS: Final = (0.2, 0.9)
"""Between two steps of a member that reads."""
NAMED: Final = 8
"""The last version of OffsetCommit and OffsetFetch that names streams, and has no ids of them."""
MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
)
FORGOTTEN: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
)


class CoordinatorMoved(Exception):
    """Another coordinator has to be found."""


class ClientMachine:
    """A machine without a node."""

    def __init__(self, world: ClusterEnvironment, node: int) -> None:
        self.world = world
        self.node = node
        self.host = host_of(node)


class SimConsumer:
    """A member, or nobody while it is down."""

    def __init__(
        self, world: ClusterEnvironment, number: int, plan: GroupPlan, history: GroupHistory
    ) -> None:
        self.world = world
        self.plan = plan
        self.machine = ClientMachine(world, FIRST_NODE + number)
        self.process: SimProcess | None = None
        self._history = history
        self.instance: str | None = f"{plan.name}-{number}" if plan.is_static else None
        self.twin: SimConsumer | None = None
        """Of a static member: the one with the same instance id that takes its place."""
        self._born_ns = 0
        self._is_replaced = False
        """Whether its twin has taken its place: it does not join anew."""
        self._starts = 0
        self._host = ""
        """Of the coordinator to which the member is connected."""
        self.rounds = 0
        """Heartbeats that were answered: all is well."""
        self._forget_all()

    def _forget_all(self) -> None:
        self.id = ""
        self.generation = -1
        self.leader = ""
        self.positions: dict[int, int] | None = None
        """Of the partitions that it owns; None: it is not settled in a generation."""
        self._joined_ns = 0
        self._is_told = False
        """Whether it joins because it was told to."""
        self._leaves = False

    # -- processes ------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def is_spare(self) -> bool:
        """Whether its twin runs in its place."""
        return self.process is None and self.twin is not None and self.twin.is_up

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.process is None and not self.is_spare:
            self._launch()

    def replace(self) -> None:
        """Have the twin of a static member take its place, while the member itself still is there:
        it is fenced, and ends when it notices that."""
        if self.twin is not None and not self.twin.is_up:
            self._is_replaced = True
            self._history.on_replaced(self.id)
            self.twin._launch()

    def end_double(self) -> None:
        """Kill the process if that of the twin runs, too."""
        if self.twin is not None and self.twin.is_up:
            self.kill()

    def _launch(self) -> None:
        self._starts += 1
        self._born_ns = self.world.loop.now_ns
        self._is_replaced = False
        self._forget_all()
        self.process = process = SimProcess(self.world.loop, self.machine, self._starts)
        self._note(f"consumer {self._starts} starts")
        process.context.run(process.start_thread, lambda: self._run(process), "consumer")

    def kill(self) -> None:
        """End the process; its kernel closes its connections."""
        process, self.process = self.process, None
        if process is None:
            return
        self._note(f"consumer {self.id} is killed")
        if self.instance is None:
            self._history.on_left(self.id)
        else:
            self._history.on_replaced(self.id)
        self.world.end_process(process)

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        if self.process is not None:
            self._note("consumer is paused")
            self.process.is_paused = True

    def go_on(self) -> None:
        """Have the process go on (SIGCONT)."""
        if self.process is not None and self.process.is_paused:
            self._note("consumer goes on")
            self.process.is_paused = False
            self.world.loop.release(self.process)

    def leave(self) -> None:
        """Have the member leave its group; it comes back as another one."""
        self._leaves = True

    def _note(self, text: str) -> None:
        self.world.note(self.machine.node, f"{self.plan.name}: {text}")

    # -- on the thread of the process -----------------------------------------------------------

    def _run(self, process: SimProcess) -> None:
        while not process.is_dead:
            try:
                self._take_part()
            except (BasculeError, CoordinatorMoved):
                pass
            sleep(RETRY_SECONDS)

    def _take_part(self) -> None:
        """Be a member until the coordinator is lost. Raises: BasculeError, CoordinatorMoved."""
        host, port = self._find()
        self._host = host
        connection = LogConnection(host, port, timeout=TIMEOUT_SECONDS)
        try:
            while True:
                self._turn(connection)
        finally:
            connection.close()

    def _turn(self, connection: LogConnection) -> None:
        """Join, or go on. Raises: BasculeError, CoordinatorMoved."""
        if self.positions is None:
            self._join(connection)
        else:
            self._step(connection)

    def _find(self) -> tuple[str, int]:
        node = self.world.prng.pick(list(self.world.founders))
        connection = LogConnection(host_of(node), CLIENT_PORT, timeout=TIMEOUT_SECONDS)
        try:
            request = FindCoordinatorRequest(coordinator_keys=[self.plan.name])
            answer: FindCoordinatorResponse = connection.request(request)
        finally:
            connection.close()
        found = answer.coordinators[0]
        if found.error_code:
            raise CoordinatorMoved
        return found.host, found.port

    def _check(self, code: int, what: str) -> bool:
        """Whether a request was answered without an error; else what to do next is noted.

        Raises: CoordinatorMoved.
        """
        if not code:
            return True
        if code in MOVED:
            raise CoordinatorMoved
        is_over = code in FORGOTTEN and self._is_replaced
        if is_over or code == ErrorCode.FENCED_INSTANCE_ID:
            self._on_fenced(code_name(code), what)
        elif code in FORGOTTEN:
            self._note(f"consumer {self.id} got {code_name(code)} for {what}")
            self._history.on_forgotten(self.id, code_name(code))
            self._on_forgotten(code)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._give_up()
            self._is_told = True
        elif code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH):
            # The answer with the present epoch was lost: the next heartbeat tells it.
            sleep(RETRY_SECONDS)
        else:
            self.world.loop.report(ANSWERED, f"{what} of {self.id} got {code_name(code)}")
        return False

    def _on_fenced(self, answer: str, what: str) -> None:
        """Another process has its instance id: this one ends."""
        assert self.twin is not None
        self._note(f"consumer {self.id} got {answer} for {what}, and ends")
        age_ns = self.world.loop.now_ns - self._born_ns
        if self._born_ns > self.twin._born_ns and age_ns > LATE_NS:
            self.world.loop.report(
                ANSWERED, f"{what} of {self.id} is fenced, and nobody has its instance id"
            )
        self._give_up()
        self.world.after(0, self._end_fenced, self.process)
        sleep(TIMEOUT_SECONDS)

    def _end_fenced(self, process: SimProcess | None) -> None:
        if self.process is process:
            self.kill()
            self.start()

    def _on_forgotten(self, code: int) -> None:
        self.id = "" if code == ErrorCode.UNKNOWN_MEMBER_ID else self.id
        self._give_up()
        self._is_told = False

    def _give_up(self) -> None:
        """It owns nothing any more."""
        self._history.on_released(self.id, self.positions or ())
        self.positions = None

    def _join(self, connection: LogConnection) -> None:
        """Join, and be assigned partitions, unless an error comes."""
        if self._is_replaced and not self.id:
            self._on_fenced("nothing", "a join")
            raise CoordinatorMoved
        if not self._is_told:
            self._history.on_cause()
        self._joined_ns = self.world.loop.now_ns
        answer = connection.request(
            JoinGroupRequest(
                group_id=self.plan.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("range", self._subscription())],
            )
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id, self.generation = answer.member_id, -1
            return
        if not self._check(answer.error_code, "a join"):
            self.generation = -1
            return
        self.id, self.generation, self.leader = (
            answer.member_id, answer.generation_id, answer.leader,
        )  # fmt: skip
        if self._is_replaced and self.twin is not None:
            # Its join was under way, and may have come after that of its twin.
            self._history.on_replaced(self.id)
            self._history.on_replaced(self.twin.id)
        asked_ns = self.world.loop.now_ns
        synced = connection.request(
            SyncGroupRequest(
                group_id=self.plan.name,
                generation_id=self.generation,
                member_id=self.id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocol_name="range",
                assignments=self._assign(answer) if answer.leader == self.id else [],
            )
        )
        if not self._check(synced.error_code, "a sync"):
            self.generation = -1
            return
        self._is_told = False
        owned = decode_assignment(bytes(synced.assignment or b"")).get(self.plan.stream, [])
        self._note(f"consumer {self.id} has {owned} in generation {self.generation}")
        self._history.on_assigned(
            self.id, self.generation, self.leader, owned,
            joined_ns=self._joined_ns, asked_ns=asked_ns,
        )  # fmt: skip
        self.positions = self._begin(connection, owned)

    def _assign(self, answer: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        ids = sorted(each.member_id for each in answer.members)
        count = len(ids)
        return [
            SyncGroupRequestAssignment(id, encode_assignment({self.plan.stream: owned}))
            for number, id in enumerate(ids)
            for owned in (range(number, self.plan.partitions, count),)
        ]

    def _subscription(self) -> bytes:
        return encode_subscription(ConsumerSubscription([self.plan.stream]))

    def _begin(self, connection: LogConnection, owned: list[int]) -> dict[int, int] | None:
        """Where to begin with partitions that are assigned now. None after an error, as after an
        exception: the consumer works on none of them."""
        member, found = self.id, None
        try:
            found = self._fetch(connection, owned)
        finally:
            if found is None:
                self._history.on_released(member, owned)
        return found

    def _fetch(self, connection: LogConnection, owned: list[int]) -> dict[int, int] | None:
        """Where the group has committed; None after an error."""
        while True:
            sent_ns = self.world.loop.now_ns
            topic = OffsetFetchGroupTopic(self.plan.stream, partition_indexes=owned)
            group = OffsetFetchGroup(self.plan.name, topics=[topic])
            connection.send(OffsetFetchRequest(groups=[group], require_stable=True), version=NAMED)
            answer = connection.receive()
            assert isinstance(answer, OffsetFetchResponse)
            (found,) = answer.groups
            if found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                sleep(RETRY_SECONDS)
                continue
            if not self._check(found.error_code, "a fetch of offsets"):
                return None
            partitions = [each for topic in found.topics for each in topic.partitions]
            for each in partitions:
                self._history.on_fetched(each.partition_index, each.committed_offset, sent_ns)
            return {each.partition_index: max(each.committed_offset, 0) for each in partitions}

    def _handle_some(self, connection: LogConnection) -> bool:
        """Handle some records, and maybe commit; False after an error."""
        assert self.positions is not None
        prng = self.world.prng
        low, high = STEP_SECONDS
        sleep(low + (high - low) * prng.below(1_000) / 1_000)
        for index in self.positions:
            self.positions[index] += prng.below(5)
        return not prng.happens(0.5) or self._commit(connection)

    def _step(self, connection: LogConnection) -> None:
        """Handle some records; commit; say that the member is alive."""
        if not self._handle_some(connection):
            return
        if self._leaves:
            self._leave(connection)
            return
        asked_ns = self.world.loop.now_ns
        # One that loads its groups answers the same, and need not know the member.
        knows_groups = self.world.knows_groups(self._host)
        answer = connection.request(
            HeartbeatRequest(
                group_id=self.plan.name,
                generation_id=self.generation,
                member_id=self.id,
                group_instance_id=self.instance,
            )
        )
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._history.on_rebalance(self.id, self.generation, self.leader)
            self._commit(connection)
            self._give_up()
            self._is_told = True
        elif self._check(answer.error_code, "a heartbeat"):
            if knows_groups:
                self._on_well(asked_ns)
            self.rounds += 1

    def _on_well(self, asked_ns: int) -> None:
        """The coordinator knows the member. What a deposed one says promises nothing: it may go on
        for longer than a session, in which the next one has heard nothing of the member."""
        if self.world.coordinator[1] in ("", self._host):
            self._history.on_well(self.id, asked_ns=asked_ns)

    def _commit(self, connection: LogConnection) -> bool:
        assert self.positions is not None
        if not self.positions:
            return True
        commits = {
            index: self._history.on_commit_sent(self.id, index, position)
            for index, position in self.positions.items()
        }
        topic = OffsetCommitTopic(
            self.plan.stream,
            partitions=[
                OffsetCommitPartition(index, position) for index, position in self.positions.items()
            ],
        )
        connection.send(
            OffsetCommitRequest(
                group_id=self.plan.name,
                generation_id_or_member_epoch=self.generation,
                member_id=self.id,
                group_instance_id=self.instance,
                topics=[topic],
            ),
            version=NAMED,
        )
        answer = connection.receive()
        assert isinstance(answer, OffsetCommitResponse)
        codes = {
            each.partition_index: each.error_code
            for topic_answer in answer.topics
            for each in topic_answer.partitions
        }
        for index, commit in commits.items():
            if not codes[index]:
                self._history.on_commit_acked(index, commit)
        return self._check(max(codes.values()), "a commit")

    def _leave(self, connection: LogConnection) -> None:
        self._note(f"consumer {self.id} leaves")
        left = self.id
        self._history.on_leaving(left)
        identity = MemberIdentity(left, self.instance)
        connection.request(LeaveGroupRequest(group_id=self.plan.name, members=[identity]))
        self._history.on_left(left)
        self._forget_all()
