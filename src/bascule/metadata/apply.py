"""Apply a command to an image."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from bascule.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    ForgetDeletions,
    PauseStream,
)
from bascule.metadata.image import Image


def apply(image: Image, command: Command) -> Image:
    """The image after `command`. Never fails: what cannot take effect leaves the image as it is.

    Applying a command twice is the same as applying it once.
    """
    if isinstance(command, ForgetDeletions):
        left = {id: name for id, name in image.deletions.items() if id not in command.ids}
        return replace(image, deletions=MappingProxyType(left))
    streams = dict(image.streams)
    if isinstance(command, CreateStream):
        streams.setdefault(command.definition.name, command.definition)
        return replace(image, streams=MappingProxyType(streams))
    present = streams.get(command.name)
    if present is None or present.id != command.id:
        return image
    if isinstance(command, DeleteStream):
        del streams[command.name]
        deletions = {**image.deletions, command.id: command.name}
        return Image(MappingProxyType(streams), MappingProxyType(deletions))
    if isinstance(command, AlterStream):
        streams[command.name] = replace(present, config=command.config)
    else:
        streams[command.name] = replace(present, paused=isinstance(command, PauseStream))
    return replace(image, streams=MappingProxyType(streams))
