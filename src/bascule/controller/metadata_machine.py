"""The state machine of the metadata group: what every node applies, in the order of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from bascule.controller.remembered_requests import RememberedRequests
from bascule.errors import UnsupportedFormat
from bascule.metadata.apply import apply, touched
from bascule.metadata.command_codec import (
    check_stored_version,
    decode_commands,
    decode_snapshot,
    encode_snapshot,
)
from bascule.metadata.commands import Command, SetClusterVersion
from bascule.metadata.image import Image
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft_driver.state_machine import FrozenChunks

OnImage: TypeAlias = Callable[[Image, Collection[bytes] | None], None]
"""Gets a new image, and the ids of the streams that may differ from the one before; None: any."""
OnCommand: TypeAlias = Callable[[Image, Command], None]
"""Gets each command, and the image before it."""


class MetadataMachine:
    """The state machine: the image, and the requests that it has the effect of."""

    def __init__(
        self,
        on_image: OnImage,
        on_command: OnCommand = lambda _, __: None,
        on_unsupported: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_unsupported` gets the cluster version where this release does not support it. The
        image does not change any more then."""
        self.image = Image()
        self.applied = 0
        """Index of the last entry that is in the image."""
        self._requests = RememberedRequests()
        self._on_image = on_image
        self._on_command = on_command
        self._on_unsupported = on_unsupported

    def has_done(self, request_id: bytes) -> bool:
        """Whether the image has the effect of this request."""
        return request_id in self._requests

    def apply(self, entries: Sequence[Entry]) -> Sequence[None]:
        """Raises: CorruptData, UnsupportedFormat."""
        before, changed = self.image, set[bytes]()
        for entry in entries:
            request, commands = decode_commands(entry.payload)
            self.applied = entry.index
            if not self._requests.accepts(request, entry.index):
                continue
            for command in commands:
                self._check_version(command)
                self._on_command(self.image, command)
                self.image = apply(self.image, command, index=entry.index)
                changed.update(touched(command))
        if self.image is not before:
            self._on_image(self.image, changed)
        return [None] * len(entries)

    def take_snapshot(self) -> FrozenChunks:
        return FrozenChunks(encode_snapshot(self.image, self._requests.snapshot()))

    async def restore(self, snapshot: RaftSnapshot) -> None:
        """Raises: CorruptData, UnsupportedFormat."""
        try:
            self.image, requests = await asyncio.to_thread(decode_snapshot, snapshot.chunks)
        except UnsupportedFormat as error:
            self._on_unsupported(error.found)
            raise
        self._requests.restore(requests, snapshot.index)
        self.applied = snapshot.index
        self._on_image(self.image, None)

    def _check_version(self, command: Command) -> None:
        if not isinstance(command, SetClusterVersion):
            return
        try:
            check_stored_version(command.version)
        except UnsupportedFormat:
            self._on_unsupported(command.version)
            raise
