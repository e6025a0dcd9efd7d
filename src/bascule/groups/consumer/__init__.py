"""The consumer group protocol of KIP-848: a pure state machine of one group.

    messages         what goes in (heartbeats) and comes out (answers, records to store)
    group            the state machine
    heartbeats       requests of members that speak this protocol
    classic_members  requests of members that speak the classic protocol, in the same group
    conversion       makes a classic group one of this protocol, and back
    roster           the members, their epochs and targets, and who may own which partition
    reconcile        one step of one member towards its target
    member           one member
    assignors        compute the targets
    regexes          subscriptions by regular expression
    journal          what has to be stored, and the answers that wait for it
    records          the group and its members as they are stored

As the classic one it has no clock, does not wait and draws nothing. A member's heartbeat is its
only request: it says what the member subscribes to and owns, and the answer what it may own.

    group epoch        one more whenever members, subscriptions or streams change
    assignment epoch   the group epoch for which the targets of all members were computed
    member epoch       the assignment epoch of a member's target, from when on it has nothing to
                       give up

             gives up nothing, all are free
           .------------------------------->  stable      it owns its target
    target |
    changes| has to give something up
           '------> unrevoked ---------------> unreleased  others still own some of its target
                    until it says that it      it gets them as they become free
                    does not own them

Promises:

* A partition is assigned to one member at a time: another one gets it after the first has said that
  it does not own it, has left, or was removed.
* Members that live get all of their targets in the end, and each partition of a subscribed stream
  is in one target.
* A member is told nothing that is not stored, so the next coordinator knows it.
* A heartbeat that changes nothing costs the same for a group of any size.

Source: KIP-848, and what clients of Kafka 4 do.
"""

from bascule.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from bascule.groups.consumer.conversion import to_classic_group, to_consumer_group
from bascule.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from bascule.groups.consumer.member import ConsumerMember, MemberState
from bascule.groups.consumer.messages import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    ConsumerEffect,
    MemberAnswer,
    MemberHeartbeat,
    Partitions,
    ReadyAnswer,
    StoreRecords,
    TopicPartition,
    Topics,
)
from bascule.groups.consumer.records import is_consumer_group

__all__ = [
    "ASSIGNORS",
    "DEFAULT_ASSIGNOR",
    "JOINS",
    "LEAVES",
    "LEAVES_FOR_A_WHILE",
    "ConsumerEffect",
    "ConsumerGroup",
    "ConsumerGroupState",
    "ConsumerMember",
    "MemberAnswer",
    "MemberHeartbeat",
    "MemberState",
    "Partitions",
    "ReadyAnswer",
    "StoreRecords",
    "TopicPartition",
    "Topics",
    "is_consumer_group",
    "to_classic_group",
    "to_consumer_group",
]
