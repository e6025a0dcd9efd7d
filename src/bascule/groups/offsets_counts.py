"""What happened to the committed offsets of a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OffsetsCounts:
    """Counters for metrics; all but `held` only grow."""

    commits: int = 0
    """Commits read from the stream, including those read at start."""
    removals: int = 0
    malformed: int = 0
    """Records that are not valid commits, and commits over NATS beyond COMMITS_MAX."""
    repairs: int = 0
    """Commits published again because a malformed record had replaced them."""
    fenced: int = 0
    """Commits and removals over NATS for groups with members, which are ignored."""
    held: int = 0
    """Commits in memory now."""
