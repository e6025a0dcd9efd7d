"""What stands for a replica where only its name matters, as in routing and sequencing."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.model import StreamConfig, StreamDefinition

_DEFINITION = StreamDefinition("s", b"i" * 16, 0, StreamConfig(subject="s"))


@dataclass(frozen=True)
class NamedReplica:
    """A replica known by its number alone."""

    index: int
    definition: StreamDefinition = _DEFINITION
