"""`GroupHistory`: what the members of one group have seen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from bascule.sim.cluster.world.loop import NS

OWNERS: Final = "one owner a partition"
FENCED: Final = "commits are fenced"
KEPT: Final = "commits are kept"
ANSWERED: Final = "groups answer"
REMEMBERED: Final = "members are remembered"
NEEDLESS: Final = "no needless rebalance"
MEMBERS_STAY: Final = "groups with members are not deleted"
SETTLED_NS: Final = 2 * NS
"""A coordinator that has just said that all is well knows the member for at least so long. Less
than a session time-out: a leader that is not one any more may have said it."""
SILENT_NS: Final = 4 * NS
"""A member that got no answer for so long may have been removed, or is about to be."""


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit of one partition."""

    member: str
    offset: int
    sent_ns: int
    acked_ns: int = -1
    """-1: no ack has come."""


@dataclass(slots=True, eq=False)
class _Partition:
    """One partition, as the group sees it."""

    commits: list[_Commit] = field(default_factory=list)
    owner: str = ""
    """The member that was assigned it last."""
    owned_ns: int = 0
    """When it learnt that."""
    holder: str = ""
    """The owner, until it gives the partition up."""
    handled: int = 0
    """The highest position of any member: below it everything was handled."""


@dataclass(slots=True, frozen=True)
class GroupDeletion:
    """A deletion of the group: the end of each offset, until something is committed again."""

    sent_ns: int
    commits: dict[_Partition, _Commit]


@dataclass(slots=True)
class _Generation:
    """A generation, from the first member that learns of it."""

    owners: dict[int, str] = field(default_factory=dict)
    joined_ns: int = 1 << 62
    """When the first of its members has sent its join."""


class GroupHistory:
    """Used by all members of one group. Times are those of the simulation, in nanoseconds."""

    def __init__(
        self,
        group: str,
        now_ns: Callable[[], int],
        report: Callable[[str, str], None],
        *,
        is_classic: bool,
    ) -> None:
        """`report` gets the name of an invariant that is broken, and how. `is_classic`: all members
        speak the classic protocol, which has generations."""
        self._is_classic = is_classic
        self._group = group
        self._now_ns = now_ns
        self._report = report
        self._partitions: dict[int, _Partition] = {}
        self._generations: dict[tuple[int, str], _Generation] = {}
        self._heard_ns: dict[str, int] = {}
        """Member -> when it asked last where the answer was that all is well. It may read the
        answer much later, after it was stopped. Members that left are not in it."""
        self._replaced: set[str] = set()
        """Static members in whose place others are."""
        self._cause_ns = 0
        """When something happened last for which a group rebalances."""

    # -- members --------------------------------------------------------------------------------

    def on_cause(self) -> None:
        """A member joins without being told to, leaves or dies."""
        self._cause_ns = self._now_ns()

    def on_assigned(
        self,
        member: str,
        generation: int,
        leader: str,
        owned: Collection[int],
        *,
        joined_ns: int,
        asked_ns: int,
    ) -> None:
        """A member that asked at `asked_ns` was told its partitions. The id of a leader is never
        used again, so it tells generations of one number apart, after the group was forgotten."""
        known = self._generations.setdefault((generation, leader), _Generation())
        known.joined_ns = min(known.joined_ns, joined_ns)
        self.on_well(member, asked_ns=asked_ns)
        for index in owned:
            other = known.owners.setdefault(index, member)
            if other in self._replaced:
                # A static member has what the one before it had, in the same generation.
                known.owners[index] = member
            elif other != member and self._is_classic:
                self._report(
                    OWNERS,
                    f"partition {index} is {member}'s and {other}'s in generation {generation} of "
                    f"{self._group}",
                )
        self.on_owned(member, owned, asked_ns)

    def on_owned(self, member: str, owned: Collection[int], asked_ns: int) -> None:
        """A member that asked at `asked_ns` was told that it owns these partitions now."""
        now_ns = self._now_ns()
        for index in owned:
            partition = self._partition(index)
            if asked_ns < partition.owned_ns and now_ns - asked_ns >= SETTLED_NS:
                continue  # it was stopped before it read the answer, and another one owns it since
            other = partition.holder
            heard_ns = self._heard_ns.get(other, -SETTLED_NS)
            if other not in ("", member) and now_ns - heard_ns < SETTLED_NS:
                self._report(
                    OWNERS,
                    f"partition {index} of {self._group} is {member}'s, and {other} has not given "
                    "it up",
                )
            partition.owner, partition.owned_ns, partition.holder = member, now_ns, member

    def on_released(self, member: str, given_up: Collection[int]) -> None:
        """A member works on these partitions no more."""
        for index in given_up:
            partition = self._partition(index)
            if partition.holder == member:
                partition.holder = ""

    def on_well(self, member: str, *, asked_ns: int) -> None:
        """The coordinator has answered a heartbeat that was sent at `asked_ns`: all is well."""
        if member not in self._replaced:
            self._heard_ns[member] = asked_ns

    def on_left(self, member: str) -> None:
        """A member has left, or is dead; what it knew is of no use any more."""
        self.on_cause()
        self._heard_ns.pop(member, None)
        self.on_released(member, self._partitions)

    def on_leaving(self, member: str) -> None:
        """A member is about to leave."""
        self._heard_ns.pop(member, None)

    def on_replaced(self, member: str) -> None:
        """Another process is about to take the place of a static member, which may go on until it
        is fenced: only its commits matter."""
        self.on_left(member)
        self._replaced.add(member)

    def on_rebalance(self, member: str, generation: int, leader: str) -> None:
        """A member that was settled is to join again."""
        known = self._generations.get((generation, leader))
        now_ns = self._now_ns()
        silent = [m for m, at in self._heard_ns.items() if at < now_ns - SILENT_NS]
        is_new = known is not None and self._cause_ns < known.joined_ns
        if self._is_classic and is_new and not silent:
            assert known is not None
            self._report(
                NEEDLESS,
                f"{member} of {self._group} is to join again, and since the joins of generation "
                f"{generation} at {known.joined_ns / NS:.3f} s nobody came, left or was silent",
            )

    def on_forgotten(self, member: str, answer: str) -> None:
        """A member is told that the coordinator does not know it, or its generation."""
        age_ns = self._now_ns() - self._heard_ns.pop(member, -SETTLED_NS)
        if age_ns < SETTLED_NS:
            self._report(
                REMEMBERED,
                f"{member} of {self._group} got {answer}, {age_ns / NS:.3f} s after all was well",
            )
        self.on_cause()

    # -- offsets --------------------------------------------------------------------------------

    def on_commit_sent(self, member: str, index: int, offset: int) -> _Commit:
        """A commit is sent; give `on_commit_acked` what is returned."""
        partition = self._partition(index)
        partition.handled = max(partition.handled, offset)
        commit = _Commit(member, offset, self._now_ns())
        partition.commits.append(commit)
        return commit

    def on_commit_acked(self, index: int, commit: _Commit) -> None:
        """A commit was answered without an error."""
        commit.acked_ns = self._now_ns()
        partition = self._partition(index)
        if partition.owner != commit.member and partition.owned_ns < commit.sent_ns:
            self._report(
                FENCED,
                f"{commit.member} of {self._group} has committed {commit.offset} for partition "
                f"{index}, sent at {commit.sent_ns / NS:.3f} s, which is {partition.owner}'s since "
                f"{partition.owned_ns / NS:.3f} s",
            )

    def on_fetched(self, index: int, offset: int, sent_ns: int) -> None:
        """The committed offset was asked for at `sent_ns` (-1: there is none)."""
        partition = self._partition(index)
        finished = [c for c in partition.commits if 0 <= c.acked_ns < sent_ns]
        latest = max(finished, key=lambda c: c.sent_ns, default=None)
        possible = {
            c.offset
            for c in partition.commits
            if latest is None or c.acked_ns < 0 or c.acked_ns >= latest.sent_ns
        }
        if latest is None:
            possible.add(-1)
        if offset not in possible:
            self._report(
                KEPT,
                f"{self._group} has committed {offset} for partition {index}, expected one of "
                f"{sorted(possible)}",
            )

    # -- deletions ------------------------------------------------------------------------------

    def on_delete_sent(self) -> GroupDeletion:
        """A deletion of the group is sent; give what is returned to one of the other methods,
        unless nobody knows what became of it."""
        now_ns = self._now_ns()
        commits = {each: _Commit("", -1, now_ns) for each in self._partitions.values()}
        for partition, commit in commits.items():
            partition.commits.append(commit)
        return GroupDeletion(now_ns, commits)

    def on_deleted(self, deletion: GroupDeletion) -> None:
        """The group had no members, and its offsets are gone."""
        for commit in deletion.commits.values():
            commit.acked_ns = self._now_ns()
        for member, at_ns in self._heard_ns.items():
            if deletion.sent_ns - SETTLED_NS < at_ns < deletion.sent_ns:
                self._report(
                    MEMBERS_STAY,
                    f"{self._group} is deleted, and {member} is a member: all was well "
                    f"{(deletion.sent_ns - at_ns) / NS:.3f} s before",
                )

    def on_delete_refused(self, deletion: GroupDeletion) -> None:
        """The group has members, or there is none."""
        for partition, commit in deletion.commits.items():
            partition.commits.remove(commit)

    def _partition(self, index: int) -> _Partition:
        return self._partitions.setdefault(index, _Partition())
