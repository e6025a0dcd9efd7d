"""What is true now: the immutable image of all streams, and of deletions under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bascule.model import StreamDefinition


@dataclass(frozen=True, slots=True)
class Image:
    """Every stream by name, and deletions. Changed only by `apply`, which returns another image."""

    streams: Mapping[str, StreamDefinition] = field(default_factory=lambda: MappingProxyType({}))
    """Invariant: each key is the name of its definition; no two definitions share an id."""
    deletions: Mapping[bytes, str] = field(default_factory=lambda: MappingProxyType({}))
    """Stream id -> name of deleted streams whose data may still be on a disk. Data is removed only
    for these ids. Invariant: none of them is the id of a stream above."""
