"""The cluster version: what nodes of several releases may tell each other and write.

A release supports a range of cluster versions, and a node registers it. The version *in force* is
in the metadata. The controller raises it to the highest one that every node of the cluster
supports, and it never goes down. What a version brings is used only when it is in force::

    what it brings                              without it
    a field of a metadata command or snapshot   it is not written, and has its default
    a version of a message between nodes        the version before is sent
    an operation                                it is refused, and the error names the nodes

A node reads and answers everything that it supports, whatever is in force: it may hear of a new
version later than its peers.

To bring something with a new version: add it to `HISTORY` and to the table in docs/operations.md,
give it a name here, and ask for that number where it is used. `metadata.versions` has the rules,
`metadata.command_codec` the fields.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class VersionNotes(NamedTuple):
    """One version, and what it brings."""

    number: int
    brings: tuple[str, ...]
    """As operators see it, each with a name below, in the same order."""


HISTORY: Final = (
    VersionNotes(1, ("what releases had before there were cluster versions, and these",)),
    VersionNotes(
        2,
        (
            "followers know whether their leader's log may have gaps, and refuse those that it "
            "must not have",
            "`bascule stream recover NAME --accept-loss`",
            "`bascule node drain N --reason TEXT`",
            "nodes say the id of their cluster in every connection",
            "groups of the consumer protocol",
            "coordinators of groups ask the controller whether they still lead",
            "tables",
            "a replica that leaves a node and comes back is told from the one before",
            "others lead for nodes that lose their NATS connection",
        ),
    ),
)
"""Ascending, without a gap. A node of an earlier release registers no range, and supports 1."""

OLDEST: Final = HISTORY[0].number
"""The oldest version that this release supports."""
NEWEST: Final = 2
"""The newest version that this release supports: the last one of `HISTORY`."""

LOG_DETAILS: Final = 2
"""ReplicaFetch version 1: a leader says whether its log may have gaps, a follower where its log
starts."""
RECOVERIES: Final = 2
"""`ElectUncleanly.by_operator`: an operator accepts the loss, and not the stream."""
DRAIN_REASONS: Final = 2
"""`NodeRegistration.drain_reason`."""
CLUSTER_IDS: Final = 2
"""PeerHello version 1: a node says the id of its cluster. Every hello between members has it."""
CONSUMER_GROUPS: Final = 2
"""Groups of the consumer protocol (KIP-848), and their records in `_offsets`."""
CONFIRMATIONS: Final = 2
"""The controller confirms to a leader that it leads: linearizable reads of tables brought that,
and coordinators of groups ask, too."""
TABLES: Final = 2
"""`StreamConfig.table` and `table_ttl_ms`."""
REPLICAS_SINCE: Final = 2
"""`PartitionState.since`."""
NATS_LACKS: Final = 2
"""`NodeRegistration.lacks_nats_since_ms`, and the command `SetNatsLack`."""
