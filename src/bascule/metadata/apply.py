"""Apply a command to an image."""

from __future__ import annotations

from types import MappingProxyType

from bascule.metadata.commands import Command, CreateStream
from bascule.metadata.image import Image


def apply(image: Image, command: Command) -> Image:
    """The image after `command`. Never fails: what cannot take effect leaves the image as it is.

    Applying a command twice is the same as applying it once.
    """
    streams = dict(image.streams)
    if isinstance(command, CreateStream):
        streams.setdefault(command.definition.name, command.definition)
    else:
        present = streams.get(command.name)
        if present is None or present.id != command.id:
            return image
        del streams[command.name]
    return Image(MappingProxyType(streams))
