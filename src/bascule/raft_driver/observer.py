"""`GroupObserver`: what a user of a group is told about its role and its members."""

from __future__ import annotations

from bascule.raft.effects import RaftState, Role
from bascule.raft.membership import Members


class GroupObserver:
    """Callbacks of one group on one node. The methods here do nothing; override what you need.

    They are called on the event loop, in the order in which the changes happened, before the
    entries of the same turn are applied, and before whoever waits for a request of the same turn
    goes on. Several changes within one turn are one call with the last state. They must not block.
    After an exception the group stops on this node, as after one of the state machine.
    """

    def on_role(self, role: Role, *, term: int, leader: int) -> None:
        """This node's role, its term, or the leader as far as known (0: unknown) changed.

        A new leader has not applied all entries of earlier terms yet: `RaftGroup.read` returns when
        it has.
        """

    def on_members(self, members: Members, *, is_committed: bool) -> None:
        """The members in force changed, or the change of them was committed. A change that is not
        committed may be reverted: the previous members are then reported again."""

    def on_removed(self, members: Members) -> None:
        """The removal of this node is committed; `members` are without it. The group stays open,
        and gets nothing more unless the node is added again; normally it is closed now."""


def report_changes(observer: GroupObserver, before: RaftState, after: RaftState) -> None:
    """Call the methods of `observer` for what differs."""
    if (before.role, before.term, before.leader) != (after.role, after.term, after.leader):
        observer.on_role(after.role, term=after.term, leader=after.leader)
    if (before.members, before.is_members_committed) != (
        after.members, after.is_members_committed,
    ):  # fmt: skip
        observer.on_members(after.members, is_committed=after.is_members_committed)
    if after.is_removed and not before.is_removed:
        observer.on_removed(after.members)
