"""How far consumers have come: the stream `_offsets`, followed and asked.

The stream is the truth, and whoever can publish to its subjects may commit; `wire.offsets` says
what a commit looks like. This node reads the stream at its start, and then whatever is committed to
it, and keeps the last commit of each consumer and partition in memory: some 600 bytes each.

A record that is no commit is counted and passed over. It has taken the place of the good one before
it all the same, since compaction looks at keys alone, so the node commits the good one again.
"""

from bascule.groups.committed_offsets import OFFSETS_CONFIG, Offsets, OffsetsCounts

__all__ = ["OFFSETS_CONFIG", "Offsets", "OffsetsCounts"]
