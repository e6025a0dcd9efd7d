"""What the controller of one term has proposed, as if it were applied. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bascule.metadata.apply import apply
from bascule.metadata.commands import Command
from bascule.metadata.image import Image

FORESEEN_REQUESTS: Final = 1_000
"""Requests in what a controller foresees, before it drops those that the image remembers."""


@dataclass(slots=True)
class Foreseen:
    """The image as it will be after every entry of the log of this leader."""

    term: int
    image: Image
    last: int
    """Index of the last entry that is in `image`."""
    requests: dict[bytes, int] = field(default_factory=dict)
    """Id of a request whose outcome is not known -> index of its entry."""

    def add(self, request_id: bytes, commands: Iterable[Command], index: int) -> None:
        """An entry was appended to the log."""
        for command in commands:
            self.image = apply(self.image, command, index=index)
        self.last = index
        if request_id:
            self.requests[request_id] = index

    def forget(self, applied: int) -> None:
        """Drop requests up to this index, where there are many: the image remembers them."""
        if len(self.requests) > FORESEEN_REQUESTS:
            self.requests = {id: at for id, at in self.requests.items() if at > applied}
