"""What can happen to the image. Commands are facts once decided: applying one cannot fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bascule.model import StreamDefinition


@dataclass(frozen=True, slots=True)
class CreateStream:
    """A stream now exists."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """The stream of this name and id no longer exists.

    The id keeps a late command from deleting a stream that was created again under the name.
    """

    name: str
    id: bytes


Command: TypeAlias = CreateStream | DeleteStream
