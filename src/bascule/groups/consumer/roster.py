"""The members of a group, its epochs, its targets, and who may own which partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from bascule.groups.classic.messages import GroupLimits
from bascule.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, MemberSubscription
from bascule.groups.consumer.journal import Journal
from bascule.groups.consumer.member import ConsumerMember, MemberState
from bascule.groups.consumer.messages import NOTHING, Partitions, TopicPartition, Topics
from bascule.groups.consumer.reconcile import reconcile
from bascule.groups.consumer.records import (
    GroupRecord,
    decode_group,
    decode_member,
    encode_group,
    encode_member,
)
from bascule.groups.consumer.regexes import matching

PARTITION_BYTES: Final = 18
"""Of one partition in the records: in the target, and with one or two members."""

PARTITION_KEPT_BYTES: Final = 320
"""Of one subscribed partition in memory and in the records; measured: 280 bytes in memory, in the
target and the assignment of one member and with its owner."""


class _Counted(NamedTuple):
    """What a member adds to the sums over all members."""

    size_bytes: int
    kept_bytes: int
    protocols: frozenset[str] | None
    """The names of its classic protocols; None: it speaks the consumer protocol."""

    @classmethod
    def of(cls, member: ConsumerMember) -> _Counted:
        classic = member.classic
        names = None if classic is None else frozenset(name for name, _ in classic.protocols)
        return cls(member.size_bytes, member.kept_bytes, names)


class Roster:
    """What all requests of a group work on. Changes are noted in `journal`."""

    def __init__(self, limits: GroupLimits, topics: Topics, incarnation: str) -> None:
        self.limits = limits
        self.topics = topics
        self.incarnation = incarnation
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        """Instance id -> member id of the static members."""
        self.epoch = 0
        """One more whenever members, subscriptions or streams change."""
        self.assignment_epoch = 0
        """The epoch for which the targets were computed."""
        self.assignor = DEFAULT_ASSIGNOR
        """The one that computed the targets."""
        self.journal = Journal(self._encode)
        self.rebalances = 0
        """Targets that were computed."""
        self._owners: dict[TopicPartition, str] = {}
        """Who may own a partition: the id of a member that has it assigned or to give up."""
        self._subscribed: dict[str, tuple[bytes, int]] = {}
        """Subscribed streams as they were for `epoch`."""
        self._partitions = 0
        """Of the subscribed streams."""
        self._counted: dict[str, _Counted] = {}
        """Member id -> its part of the sums below."""
        self._size_bytes = self._kept_bytes = 0
        self._classic_count = 0
        """Members that speak the classic protocol."""
        self._classic_protocols: Counter[str] = Counter()
        """Name of a protocol -> how many of these have it."""
        self._matches: dict[str, frozenset[str]] = {}
        """Regular expression -> the streams that match."""
        self._topics_version: int | None = None
        self._deadline_ms: int | None = None
        """Not later than that of any member."""

    @classmethod
    def restore(
        cls,
        group: bytes,
        members: Iterable[tuple[str, bytes]],
        limits: GroupLimits,
        topics: Topics,
        now_ms: int,
    ) -> Roster:
        """The roster as it was stored; sessions begin now. Raises: ValueError."""
        stored = decode_group(group)
        roster = cls(limits, topics, stored.incarnation)
        roster.epoch, roster.assignment_epoch = stored.epoch, stored.assignment_epoch
        roster.assignor = stored.assignor
        subscribed = stored.topics.items()
        roster._subscribe(
            {name: (bytes.fromhex(each), count) for name, (each, count) in subscribed}
        )
        for member_id, value in members:
            member, incarnation = decode_member(member_id, value, now_ms)
            if incarnation == stored.incarnation:
                roster.adopt(member)
        return roster

    def _encode(self, member_id: str | None) -> bytes | None:
        if member_id is not None:
            member = self.members.get(member_id)
            return None if member is None else encode_member(member, self.incarnation)
        if not self.members:
            return None
        topics = {name: (found.hex(), count) for name, (found, count) in self._subscribed.items()}
        return encode_group(
            GroupRecord(
                incarnation=self.incarnation,
                epoch=self.epoch,
                assignment_epoch=self.assignment_epoch,
                assignor=self.assignor,
                topics=topics,
            )
        )

    @property
    def size_bytes(self) -> int:
        """Of the records, about."""
        self._count_touched()
        return self._size_bytes + PARTITION_BYTES * self._partitions

    @property
    def kept_bytes(self) -> int:
        """What the group takes in memory and as it is stored, about."""
        self._count_touched()
        return self._kept_bytes + PARTITION_KEPT_BYTES * self._partitions

    @property
    def classic_count(self) -> int:
        """Members that speak the classic protocol."""
        self._count_touched()
        return self._classic_count

    def have_protocol(self, names: Iterable[str], *, besides: ConsumerMember | None) -> bool:
        """Whether all members that speak the classic protocol, but for one, have one of `names` in
        common. The cost does not depend on how many members there are."""
        self._count_touched()
        protocols, count = self._classic_protocols, self._classic_count
        counted = None if besides is None else self._counted.get(besides.member_id)
        if counted is None or counted.protocols is None:
            return any(protocols[name] == count for name in names)
        own = counted.protocols
        return any(protocols[name] - (name in own) == count - 1 for name in names)

    def _count_touched(self) -> None:
        """Count those members anew that have changed. All others are in the sums already."""
        touched = self.journal.touched
        while touched:
            member_id = touched.pop()
            before = self._counted.pop(member_id, None)
            if before is not None:
                self._add(before, -1)
            member = self.members.get(member_id)
            if member is not None:
                counted = self._counted[member_id] = _Counted.of(member)
                self._add(counted, 1)

    def _add(self, counted: _Counted, sign: int) -> None:
        self._size_bytes += sign * counted.size_bytes
        self._kept_bytes += sign * counted.kept_bytes
        if counted.protocols is None:
            return
        self._classic_count += sign
        for name in counted.protocols:
            self._classic_protocols[name] += sign
            if not self._classic_protocols[name]:
                del self._classic_protocols[name]

    def _subscribe(self, subscribed: dict[str, tuple[bytes, int]]) -> None:
        self._subscribed = subscribed
        self._partitions = sum(count for _, count in subscribed.values())

    # -- members --------------------------------------------------------------------------------

    def adopt(self, member: ConsumerMember) -> None:
        """Add a member with what it owns."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for each in member.assigned | member.revoking:
            self._owners[each] = member.member_id
        self.journal.touch(member.member_id)
        self.watch(member)

    def drop(self, member: ConsumerMember) -> None:
        """Remove a member and free what it owned."""
        del self.members[member.member_id]
        if member.instance_id is not None and (
            self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        self._free(member, member.assigned | member.revoking)
        self.journal.touch(member.member_id)
        self.journal.touch(None)
        if not self.members:
            self._subscribe({})
            self._deadline_ms = None

    def remove(self, member: ConsumerMember) -> None:
        """Drop a member for good: the others get what it had."""
        self.drop(member)
        self.bump()
        # Some streams may have no subscriber any more.
        self._topics_version = None

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """A static member comes back as `new`; it gets what the old one had, and owns nothing."""
        self.drop(old)
        new.target, new.assigned = old.target, old.assigned
        new.topics, new.regex, new.assignor = old.topics, old.regex, old.assignor
        self.adopt(new)

    def release(self, member: ConsumerMember) -> None:
        """A member has given up what it had to."""
        self._free(member, member.revoking)
        member.state, member.revoking, member.revoke_due_ms = MemberState.STABLE, NOTHING, None
        self.journal.touch(member.member_id)

    def _free(self, member: ConsumerMember, partitions: Partitions) -> None:
        for each in partitions:
            if self._owners.get(each) == member.member_id:
                del self._owners[each]

    # -- epochs and targets ---------------------------------------------------------------------

    def bump(self) -> None:
        """A new epoch: from now on the targets are out of date."""
        self.epoch += 1
        self.journal.touch(None)

    def note_topics(self, *, has_changed: bool = False) -> None:
        """Look at the streams, if they or the subscriptions (`has_changed`) have changed."""
        version = self.topics.version
        if version != self._topics_version:
            self._topics_version = version
            self._matches.clear()
        elif not has_changed:
            return
        subscribed: dict[str, tuple[bytes, int]] = {}
        for names in {(m.topics, m.regex): m for m in self.members.values()}.values():
            for name in self.names_of(names):
                if name not in subscribed and (found := self.topics.find(name)) is not None:
                    subscribed[name] = found
        used = {member.regex for member in self.members.values()}
        self._matches = {regex: names for regex, names in self._matches.items() if regex in used}
        if subscribed != self._subscribed:
            self._subscribe(subscribed)
            has_changed = True
            self.journal.touch(None)
        if has_changed and self.epoch == self.assignment_epoch:
            self.bump()

    @property
    def has_new_topics(self) -> bool:
        """Whether streams have changed since `note_topics` was called last."""
        return self._topics_version != self.topics.version

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names that a member subscribes to."""
        if not member.regex:
            return member.topics
        found = self._matches.get(member.regex)
        if found is None:
            found = self._matches[member.regex] = matching(member.regex, self.topics.names())
        return member.topics | found

    def update_targets(self) -> None:
        """Compute the targets of all members, unless they are those of `epoch` already."""
        if self.assignment_epoch == self.epoch:
            return
        votes = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        if votes:
            self.assignor = min(votes, key=lambda name: (-votes[name], name))
        else:
            self.assignor = DEFAULT_ASSIGNOR
        topics: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        subscriptions = {}
        for member_id, member in self.members.items():
            key = member.topics, member.regex
            if key not in topics:
                names = self.names_of(member)
                topics[key] = frozenset(
                    found[0] for name in names if (found := self._subscribed.get(name)) is not None
                )
            rank = member.instance_id or member_id
            subscriptions[member_id] = MemberSubscription(topics[key], member.target, rank)
        counts = dict(self._subscribed.values())
        for member_id, target in ASSIGNORS[self.assignor](subscriptions, counts).items():
            if target != self.members[member_id].target:
                self.members[member_id].target = target
                self.journal.touch(member_id)
        self.assignment_epoch = self.epoch
        self.rebalances += 1
        self.journal.touch(None)

    def reconcile(self, member: ConsumerMember, owned: Partitions | None, now_ms: int) -> bool:
        """Bring a member closer to its target; whether what it may own has changed."""
        held, assigned = member.assigned | member.revoking, member.assigned
        was_revoking = member.revoking
        if not reconcile(member, self.assignment_epoch, owned, self._is_free_for(member)):
            return False
        holds = member.assigned | member.revoking
        self._free(member, held - holds)
        for each in holds - held:
            self._owners[each] = member.member_id
        if not member.revoking:
            member.revoke_due_ms = None
        elif member.revoking != was_revoking:
            member.revoke_due_ms = now_ms + member.rebalance_timeout_ms
            self.watch(member)
        self.journal.touch(member.member_id)
        return member.assigned != assigned

    def may_get_more(self, member: ConsumerMember) -> bool:
        """Whether partitions of its target are free that the member does not have yet."""
        if member.state is not MemberState.UNRELEASED:
            return False
        is_free = self._is_free_for(member)
        return any(is_free(each) for each in member.target - member.assigned)

    def _is_free_for(self, member: ConsumerMember) -> _IsFree:
        return _IsFree(self._owners, member.member_id)

    @property
    def is_reconciled(self) -> bool:
        """Whether all members own their targets."""
        return self.assignment_epoch == self.epoch and all(
            member.state is MemberState.STABLE
            and (member.is_away or member.epoch == self.assignment_epoch)
            for member in self.members.values()
        )

    # -- time -----------------------------------------------------------------------------------

    def watch(self, member: ConsumerMember) -> None:
        """A deadline of a member is earlier than before."""
        due_ms = member.deadline_ms(self.limits.consumer_session_ms)
        if self._deadline_ms is None or due_ms < self._deadline_ms:
            self._deadline_ms = due_ms

    def next_deadline_ms(self) -> int | None:
        """Not later than the deadline of any member; heartbeats do not change it."""
        return self._deadline_ms

    def expired(self, now_ms: int) -> list[ConsumerMember]:
        """The members whose time is up. Looks at all of them, once about every session."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return []
        session_ms = self.limits.consumer_session_ms
        gone, self._deadline_ms = [], None
        for member in self.members.values():
            if member.deadline_ms(session_ms) <= now_ms:
                gone.append(member)
            else:
                self.watch(member)
        return gone


class _IsFree:
    """Whether nobody but one member may own a partition."""

    __slots__ = ("_member_id", "_owners")

    def __init__(self, owners: dict[TopicPartition, str], member_id: str) -> None:
        self._owners, self._member_id = owners, member_id

    def __call__(self, partition: TopicPartition) -> bool:
        return self._owners.get(partition, self._member_id) == self._member_id
