"""What is true now: the immutable image of all streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bascule.model import StreamDefinition


@dataclass(frozen=True, slots=True)
class Image:
    """Every stream by name. Changed only by `apply`, which returns another image."""

    streams: Mapping[str, StreamDefinition] = field(default_factory=lambda: MappingProxyType({}))
    """Invariant: each key is the name of its definition; no two definitions share an id."""
