"""Apply a command to an image."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from bascule.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, PauseStream
from bascule.metadata.image import Image


def apply(image: Image, command: Command) -> Image:
    """The image after `command`. Never fails: what cannot take effect leaves the image as it is.

    Applying a command twice is the same as applying it once.
    """
    streams = dict(image.streams)
    if isinstance(command, CreateStream):
        streams.setdefault(command.definition.name, command.definition)
        return Image(MappingProxyType(streams))
    present = streams.get(command.name)
    if present is None or present.id != command.id:
        return image
    if isinstance(command, DeleteStream):
        del streams[command.name]
    elif isinstance(command, AlterStream):
        streams[command.name] = replace(present, config=command.config)
    else:
        streams[command.name] = replace(present, paused=isinstance(command, PauseStream))
    return Image(MappingProxyType(streams))
