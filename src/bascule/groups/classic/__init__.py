"""The classic group protocol: a pure state machine of one group.

    messages     what goes in (joins) and comes out (answers, states to store)
    member       one member
    member_table the members, with sums and indexes
    group        the state machine
    snapshot     the state of a group as it is stored
    description  a group as it is listed and described

The group has no clock, does not wait and draws nothing. The caller gives the time in milliseconds
of any clock that does not go back, and the id that a new member will have. Results come as data:
an answer carries the ticket that the caller gave with the request.

          first member joins            all have joined, or time is up
    Empty ------------------> Preparing --------------------------> Completing
      ^                       Rebalance                             Rebalance
      |                        ^     ^                                 |
      | the last one leaves    |     | a member joins or goes          | the leader's assignment
      '------------------------'     '---------------- Stable <--------' is stored

Promises:

* Every ticket is answered once, unless its connection is gone first.
* All members of a generation are told the same generation, protocol and leader.
* An assignment is handed out after it is stored, and a member gets only its own.
* A rebalance ends: members that do not come in time are removed.
* Memory is bounded by `GroupLimits`, also where members come and die in a loop.
* A join, a heartbeat and a sync cost the same for a group of any size, but for what concerns all
  members: the begin of a generation, and its assignments.

Source: Apache Kafka's GroupCoordinator; KIP-62 (rebalance time-out), KIP-134 (initial delay),
KIP-345 (static members), KIP-394 (member id required), KIP-814 (skipped assignment).
"""

from bascule.groups.classic.group import ClassicGroup
from bascule.groups.classic.messages import (
    Effect,
    GroupAnswer,
    GroupLimits,
    GroupState,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.groups.classic.snapshot import GroupSnapshot, MemberSnapshot

__all__ = [
    "ClassicGroup",
    "Effect",
    "GroupAnswer",
    "GroupLimits",
    "GroupSnapshot",
    "GroupState",
    "JoinAnswer",
    "JoinRequest",
    "JoinedMember",
    "MemberSnapshot",
    "Store",
    "SyncAnswer",
]
