"""What can happen to the image. Commands are facts once decided: applying one cannot fail.

A stream's id in a command keeps a late one from hitting a stream that was created again under the
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bascule.model import StreamConfig, StreamDefinition


@dataclass(frozen=True, slots=True)
class CreateStream:
    """A stream now exists."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class AlterStream:
    """The stream of this name and id now has this configuration."""

    name: str
    id: bytes
    config: StreamConfig


@dataclass(frozen=True, slots=True)
class PauseStream:
    """The stream of this name and id takes no messages until it is resumed."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class ResumeStream:
    """The stream of this name and id takes messages again."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """The stream of this name and id no longer exists."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class ForgetDeletions:
    """The data of these deleted streams is gone."""

    ids: tuple[bytes, ...]


StreamCommand: TypeAlias = CreateStream | AlterStream | PauseStream | ResumeStream | DeleteStream
Command: TypeAlias = StreamCommand | ForgetDeletions
