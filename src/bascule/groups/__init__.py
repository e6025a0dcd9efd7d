"""Committed offsets of consumers, stored in the compacted stream `_offsets`.

    committed_offsets    follows the stream, answers queries, publishes commits and removals
    offset_appends       appends to the stream: what arrives meanwhile is the next batch
    prepared_commits     commits that a member makes again and again, but for their offsets
    offset_records       decodes the records of the stream; resolves positions for a reset
    running              a group that this node coordinates, stored and restored
    memory               bounds the memory of all groups
    deadlines            one timer for all groups
    coordinator          runs the groups with members whose partition of the stream this node leads
    subscribable         the streams of this node, as groups see them
    classic              the classic group protocol, as a pure state machine
    consumer             the consumer group protocol (KIP-848), as a pure state machine
    described            groups as they are listed and described, of whatever kind
    descriptions         makes those descriptions
    administration       lists, describes and deletes groups

The stream is the source of truth. Every publisher that may publish to its subjects may commit;
`wire.offsets` defines the format. The node reads the stream when it starts and follows it from
there. It keeps the last commit of each consumer and partition in memory, about 600 bytes each.

Promises:

* A commit is acknowledged only after it is stored and this node has read it back.
* `wait_caught_up` returns only after everything committed before the call is in memory.
* A malformed record never moves a consumer. It is counted and skipped.
* A commit for a deleted stream is not used for a new stream of the same name.

Compaction keeps the last record of each key, so a malformed record would remove the valid commit
before it. The node therefore publishes that commit again ("repair").

The members of a group are records of the stream, too, with a key that nobody else can publish. So a
new leader of the partition knows them, and they go on without joining again.
"""

from bascule.groups.administration import GroupAdministration
from bascule.groups.committed_offsets import OFFSETS_CONFIG, CommittedOffsetStore
from bascule.groups.coordinator import GroupCoordinator
from bascule.groups.offset_records import OffsetsCounts
from bascule.groups.running import GroupCounts

__all__ = [
    "OFFSETS_CONFIG",
    "CommittedOffsetStore",
    "GroupAdministration",
    "GroupCoordinator",
    "GroupCounts",
    "OffsetsCounts",
]
