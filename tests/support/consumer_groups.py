"""A group of the consumer protocol under manual time, and consumers of both protocols.

`GroupHost` does what the coordinator does: it stores what the group says, restores it, and converts
the group from one protocol to the other. Every answer is looked up by its ticket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bascule.groups.classic import (
    ClassicGroup,
    GroupAnswer,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.groups.classic.snapshot import decode_snapshot, encode_snapshot
from bascule.groups.consumer import (
    ConsumerGroup,
    MemberAnswer,
    MemberHeartbeat,
    Partitions,
    ReadyAnswer,
    StoreRecords,
    TopicPartition,
    is_consumer_group,
    to_classic_group,
    to_consumer_group,
)
from bascule.groups.consumer.roster import PARTITION_KEPT_BYTES
from bascule.wire.codec import encode
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_protocol import (
    ConsumerSubscription,
    OwnedTopic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)

SESSION_MS = 45_000
REBALANCE_MS = 60_000


class FakeTopics:
    """Streams that a test makes, grows and deletes."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self._found: dict[str, tuple[bytes, int]] = {}
        self._made = 0
        for name, count in counts.items():
            self.make(name, count)

    def make(self, name: str, count: int) -> bytes:
        self._made += 1
        topic_id = self._made.to_bytes(16)
        self._found[name] = (topic_id, count)
        self.version += 1
        return topic_id

    def grow(self, name: str, count: int) -> None:
        self._found[name] = (self._found[name][0], count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._found[name]
        self.version += 1

    def find(self, name: str) -> tuple[bytes, int] | None:
        return self._found.get(name)

    def names(self) -> list[str]:
        return list(self._found)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, found in self._found.items() if found[0] == topic_id), None)

    def partitions(self, *names: str) -> Partitions:
        return frozenset(
            TopicPartition(self._found[name][0], n)
            for name in names
            for n in range(self._found[name][1])
        )


class GroupHost:
    """Stores at once, unless `holds_stores`."""

    def __init__(self, topics: FakeTopics, **limits: int) -> None:
        limits.setdefault("initial_delay_ms", 0)
        self.limits = GroupLimits(**limits)
        self.topics = topics
        self.now_ms = 1_000
        self.holds_stores = False
        self.held: list[tuple[Any, Store | StoreRecords]] = []
        self.stored: dict[str | None, bytes] = {}
        """What compaction leaves of the log: the record of the group (None) and of members."""
        self.answers: dict[int, Any] = {}
        self.conversions = 0
        self._tickets = 0
        self._groups = 0
        self.group: ConsumerGroup | ClassicGroup = self._new()

    def _new(self) -> ConsumerGroup:
        return ConsumerGroup.empty(self.limits, self.topics, self._incarnation())

    def _incarnation(self) -> str:
        self._groups += 1
        return f"group {self._groups}"

    @property
    def consumer(self) -> ConsumerGroup:
        assert isinstance(self.group, ConsumerGroup)
        return self.group

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    # -- requests -------------------------------------------------------------------------------

    def send(self, request: MemberHeartbeat) -> int:
        """The ticket of a heartbeat of the consumer protocol."""
        ticket = self.ticket()
        if isinstance(self.group, ClassicGroup):
            if request.epoch != 0:
                self.answers[ticket] = MemberAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
                return ticket
            converted = to_consumer_group(
                self.group, self.limits, self.topics, self._incarnation(), self.now_ms
            )
            assert converted is not None
            self.group.unload(ErrorCode.REBALANCE_IN_PROGRESS)
            self._deliver(self.group.take_effects())
            self.group = converted
            self.conversions += 1
        answer = self.group.on_member_heartbeat(request, ticket, self.now_ms)
        if answer is not None:
            self.answers[ticket] = answer
        self.carry_out()
        return ticket

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> MemberAnswer:
        """The answer to a heartbeat, which must be there."""
        answer = self.answers[self.send(MemberHeartbeat(member_id, epoch, **fields))]
        assert isinstance(answer, MemberAnswer)
        return answer

    def join(self, member_id: str, *topics: str, **fields: Any) -> MemberAnswer:
        fields = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topics": topics,
            "owned": frozenset(),
            **fields,
        }
        return self.heartbeat(member_id, 0, **fields)

    def classic_join(self, request: JoinRequest) -> int:
        if isinstance(self.group, ConsumerGroup) and self.group.is_forgettable:
            self.group = ClassicGroup(self.limits)
        ticket = self.ticket()
        self.group.on_join(request, ticket, self.now_ms)
        self.carry_out()
        return ticket

    def classic_sync(
        self, member_id: str, generation: int, brought: list[tuple[str, bytes]]
    ) -> int:
        ticket = self.ticket()
        self.group.on_sync(member_id, None, generation, brought, ticket, self.now_ms)
        self.carry_out()
        return ticket

    def classic_heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        error = self.group.on_heartbeat(member_id, None, generation, self.now_ms)
        self.carry_out()
        return error

    def leave(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        (error,) = self.group.on_leave([(member_id, instance_id)], self.now_ms)
        self.carry_out()
        return error

    # -- effects --------------------------------------------------------------------------------

    def carry_out(self) -> None:
        self._deliver(self.group.take_effects())
        if isinstance(self.group, ConsumerGroup) and self.group.has_only_classic_members:
            classic, store = to_classic_group(self.group, self.limits, self.now_ms)
            self._deliver(self.group.end())
            self.group = classic
            self.conversions += 1
            self._deliver([store, *classic.take_effects()])
        while self.held and not self.holds_stores:
            self.finish_store()

    def _deliver(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case GroupAnswer() | ReadyAnswer():
                    assert effect.ticket not in self.answers, "answered twice"
                    self.answers[effect.ticket] = effect.answer
                case Store() | StoreRecords():
                    self.held.append((self.group, effect))

    def finish_store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """End the oldest store."""
        group, store = self.held.pop(0)
        if not error:
            self._write(store)
        group.on_stored(store.number, error, self.now_ms)
        if group is self.group:
            self.carry_out()

    def _write(self, store: Store | StoreRecords) -> None:
        if isinstance(store, Store):
            state = None if store.snapshot is None else encode_snapshot(store.snapshot)
            records: Any = [(None, state)]
        else:
            records = store.records
        for key, value in records:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def restart(self) -> None:
        """Another node coordinates the group: it knows what was stored."""
        self.group.unload(ErrorCode.NOT_COORDINATOR)
        self._deliver(self.group.take_effects())
        self.held.clear()
        state = self.stored.get(None)
        if state is None:
            self.group = self._new()
        elif is_consumer_group(state):
            members = [(key, value) for key, value in self.stored.items() if key is not None]
            self.group = ConsumerGroup.restore(
                state, members, self.limits, self.topics, self.now_ms
            )
        else:
            self.group = ClassicGroup.restore(decode_snapshot(state), self.limits, self.now_ms)
        self.carry_out()

    def pass_time(self, ms: int) -> None:
        """Do what is due on the way, at the times for which the group asks."""
        end_ms = self.now_ms + ms
        while (due := self.group.next_deadline_ms()) is not None and due <= end_ms:
            self.now_ms = max(due, self.now_ms)
            self.group.on_time(self.now_ms)
            self.carry_out()
        self.now_ms = end_ms


@dataclass
class Consumer:
    """A consumer as a well-behaved client library runs it, with the consumer protocol."""

    host: GroupHost
    name: str
    topics: tuple[str, ...] = ("flights",)
    regex: str = ""
    assignor: str | None = None
    instance_id: str | None = None
    epoch: int = 0
    owned: Partitions = frozenset()
    """What it reads from."""
    goal: Partitions = frozenset()
    """What it was told last; it gives up the rest when it `applies`."""
    ticket: int | None = None
    says_all: bool = True
    """Whether the next heartbeat has all fields: an answer was missed."""
    said: Partitions | None = None
    """What it said last that it owned."""
    subscribed: tuple[tuple[str, ...], str] | None = None
    """The names and the expression that it said last."""
    assignments: int = 0
    was_removed: bool = False
    """Whether the group has removed it, which it may not know yet."""

    @property
    def is_member(self) -> bool:
        return self.epoch > 0

    def request(self) -> MemberHeartbeat:
        joins = self.epoch == 0
        everything = joins or self.says_all
        tells = everything or self.owned != self.said
        subscribes = everything or (self.topics, self.regex) != self.subscribed
        self.said, self.subscribed = self.owned, (self.topics, self.regex)
        return MemberHeartbeat(
            self.name,
            self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if everything else -1,
            topics=self.topics if subscribes else None,
            regex=self.regex if subscribes else None,
            assignor=self.assignor if everything else None,
            owned=self.owned if tells else None,
        )

    def send(self) -> None:
        """Send a heartbeat, unless one is under way."""
        if self.ticket is None:
            self.ticket = self.host.send(self.request())

    def receive(self) -> None:
        """Take the answer, if there is one."""
        answer = self.host.answers.get(self.ticket or 0)
        if answer is None:
            return
        self.ticket = None
        assert isinstance(answer, MemberAnswer)
        if answer.error:
            self._on_error(answer.error)
            return
        if self.epoch == 0:
            self.was_removed = False
        assert answer.epoch > 0
        assert answer.epoch >= self.epoch
        self.epoch, self.says_all = answer.epoch, False
        if answer.assigned is not None:
            self.assignments += answer.assigned != self.goal
            self.goal = answer.assigned

    def _on_error(self, error: ErrorCode) -> None:
        if error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.goal = 0, frozenset(), frozenset()
        else:
            assert error in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                ErrorCode.UNRELEASED_INSTANCE_ID,
            ), error
        self.says_all = True

    def lose(self) -> None:
        """The answer does not come: the client stops waiting for it."""
        self.ticket, self.says_all = None, True

    def apply(self) -> None:
        """Give up what it must, then take what it may."""
        self.owned = self.goal

    def beat(self) -> None:
        """A heartbeat with its answer, and what follows from it."""
        self.send()
        self.receive()
        self.apply()

    def leave(self, *, for_a_while: bool = False) -> None:
        self.owned = self.goal = frozenset()
        epoch = -2 if for_a_while else -1
        self.host.send(MemberHeartbeat(self.name, epoch, instance_id=self.instance_id))
        self.epoch, self.ticket = 0, None


@dataclass
class ClassicConsumer:
    """A consumer that speaks the classic protocol, with an eager or a cooperative assignor.

    Where it leads a group of the classic protocol it assigns in turn, as an eager assignor does.
    """

    host: GroupHost
    name: str
    topics: tuple[str, ...] = ("flights",)
    cooperates: bool = False
    member_id: str = ""
    generation: int = -1
    owned: Partitions = frozenset()
    stage: str = "outside"
    """outside, joining, joined, syncing or member."""
    ticket: int | None = None
    leads: JoinAnswer | None = None
    joins: int = 0
    was_removed: bool = False

    @property
    def is_member(self) -> bool:
        return self.stage == "member"

    def _metadata(self) -> bytes:
        by_name: dict[str, list[int]] = {}
        for topic_id, n in sorted(self.owned):
            name = self.host.topics.name_of(topic_id)
            if name is not None:
                by_name.setdefault(name, []).append(n)
        owned = [OwnedTopic(name, found) for name, found in by_name.items()]
        parts: list[Any] = [b"\0\1"]
        encode(ConsumerSubscription(self.topics, owned_partitions=owned), 1, parts)
        return b"".join(bytes(part) for part in parts)

    def beat(self) -> None:
        """The next step."""
        if self.stage == "outside":
            self.join()
        elif self.stage == "joining":
            self._on_joined()
        elif self.stage == "joined":
            self._sync()
        elif self.stage == "syncing":
            self._on_synced()
        else:
            self._on_error(self.host.classic_heartbeat(self.member_id, self.generation))

    def join(self) -> None:
        if not self.cooperates:
            self.owned = frozenset()
        self.joins += 1
        self.stage = "joining"
        self.ticket = self.host.classic_join(
            JoinRequest(
                self.member_id,
                None,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                protocols=(("range", self._metadata()),),
                new_member_id=f"{self.name}-{self.joins}",
            )
        )

    def _on_joined(self) -> None:
        answer = self.host.answers.get(self.ticket or 0)
        if answer is None:
            return
        assert isinstance(answer, JoinAnswer)
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id, self.stage = answer.member_id, "outside"
        elif answer.error:
            self._on_error(answer.error)
        else:
            self.was_removed = False
            self.member_id, self.generation = answer.member_id, answer.generation
            self.leads, self.stage = (answer if answer.members else None), "joined"

    def _sync(self) -> None:
        brought = []
        if self.leads is not None:
            subscribed = {
                m.member_id: decode_subscription(m.metadata).topics for m in self.leads.members
            }
            shares: dict[str, dict[str, list[int]]] = {each: {} for each in subscribed}
            for name in sorted({topic for topics in subscribed.values() for topic in topics}):
                who = sorted(each for each, topics in subscribed.items() if name in topics)
                found = self.host.topics.find(name)
                for n in range(found[1] if found else 0):
                    shares[who[n % len(who)]].setdefault(name, []).append(n)
            brought = [(each, encode_assignment(share)) for each, share in shares.items()]
        self.stage = "syncing"
        self.ticket = self.host.classic_sync(self.member_id, self.generation, brought)

    def _on_synced(self) -> None:
        answer = self.host.answers.get(self.ticket or 0)
        if answer is None:
            return
        assert isinstance(answer, SyncAnswer)
        if answer.error:
            self._on_error(answer.error)
            return
        before = self.owned
        self.owned = frozenset(
            TopicPartition(found[0], n)
            for name, partitions in decode_assignment(answer.assignment).items()
            if (found := self.host.topics.find(name)) is not None
            for n in partitions
        )
        # A cooperative member that has given something up joins again at once.
        self.stage = "outside" if self.cooperates and before - self.owned else "member"

    def _on_error(self, error: ErrorCode) -> None:
        if not error:
            return
        self.stage = "outside"
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            return
        self.owned = frozenset()
        if error is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""

    def leave(self) -> None:
        self.owned = frozenset()
        if self.member_id:
            self.host.leave(self.member_id)
        self.member_id, self.stage, self.ticket = "", "outside", None


@dataclass
class Owners:
    """Checks that no partition has two owners, and that all have one in the end."""

    host: GroupHost
    consumers: list[Any] = field(default_factory=list)

    def check(self) -> None:
        """A consumer that the group has removed reads on until it learns of that."""
        group = self.host.group
        if isinstance(group, ConsumerGroup):
            kept = sum(member.kept_bytes for member in group.members.values())
            partitions = sum(count for _, count in group.roster._subscribed.values())
            assert group.kept_bytes == kept + PARTITION_KEPT_BYTES * partitions, "counted anew"
            self._check_protocols(group)
        seen: dict[TopicPartition, str] = {}
        for each in self.consumers:
            member_id = each.name if isinstance(each, Consumer) else each.member_id
            if member_id not in self.host.group.members:
                each.was_removed = True
            if each.was_removed:
                continue
            for partition in each.owned:
                assert partition not in seen, (
                    f"{each.name} and {seen[partition]} own {partition.partition}"
                )
                seen[partition] = each.name

    @staticmethod
    def _check_protocols(group: ConsumerGroup) -> None:
        """What members of the classic protocol have in common is counted, not looked for."""
        classic = [each for each in group.members.values() if each.classic is not None]
        assert group.roster.classic_count == len(classic)
        for besides in (None, *group.members.values()):
            others = [each.classic for each in classic if each is not besides]
            for name in ("range", "cooperative-sticky", "none"):
                found = group.roster.have_protocol([name], besides=besides)
                assert found == all(
                    side is not None and name in dict(side.protocols) for side in others
                )

    def settle(self, beats: int = 60) -> None:
        """All go on undisturbed; then they own all that they subscribe to, each partition once."""
        self.host.holds_stores = False
        self.host.carry_out()
        for each in self.consumers:
            if isinstance(each, Consumer) and each.ticket is not None:
                each.lose()
        for _ in range(beats):
            for each in self.consumers:
                each.beat()
                self.check()
            self.host.pass_time(1_000)
            self.check()
            if self.is_settled():
                return
        raise AssertionError(
            [(each.name, each.is_member, len(each.owned)) for each in self.consumers]
        )

    def is_settled(self) -> bool:
        wanted = {
            partition
            for each in self.consumers
            for name in self._names(each)
            for partition in self.host.topics.partitions(name)
        }
        owned = [partition for each in self.consumers for partition in each.owned]
        return (
            self.host.group.state == "Stable"
            and len(self.host.group.members) == len(self.consumers)
            and all(each.is_member for each in self.consumers)
            and sorted(owned) == sorted(wanted)
        )

    def _names(self, each: Any) -> set[str]:
        there = set(self.host.topics.names())
        if isinstance(each, Consumer) and each.regex:
            import re2

            pattern = re2.compile(each.regex)
            return {name for name in there if pattern.fullmatch(name)} | (there & set(each.topics))
        return there & set(each.topics)
