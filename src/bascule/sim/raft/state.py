"""The state machine of a simulated group: a small map with snapshots in several chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from bascule.sim.checkers.history import OperationKind

PUT: Final = 1
CAS: Final = 2
APPEND: Final = 3
VERBS: Final = {OperationKind.PUT: PUT, OperationKind.CAS: CAS, OperationKind.APPEND: APPEND}


class KeyValueCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A proposal's payload. `number` is unique."""

    number: int
    verb: int
    key: str
    value: bytes
    expected: bytes | None = None


class CommandResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a command."""

    number: int
    done: bool
    """False if a CAS found another value."""


encode_command = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(KeyValueCommand).decode
_decode_state = msgspec.msgpack.Decoder(tuple[int, dict[str, bytes]]).decode
_encode_state = msgspec.msgpack.Encoder(order="sorted").encode


class KeyValues:
    """A map of keys to values, as of index `applied`."""

    __slots__ = ("applied", "chunk_bytes", "values")

    def __init__(self, chunk_bytes: int) -> None:
        self.applied = 0
        self.chunk_bytes = chunk_bytes
        """Maximum size of a snapshot chunk."""
        self.values: dict[str, bytes] = {}

    def apply(self, payload: bytes) -> CommandResult:
        """Apply one command."""
        command = decode_command(payload)
        values, key = self.values, command.key
        if command.verb == CAS and values.get(key) != command.expected:
            return CommandResult(command.number, False)
        if command.verb == APPEND:
            values[key] = values.get(key, b"") + command.value
        else:
            values[key] = command.value
        return CommandResult(command.number, True)

    def take_snapshot(self) -> tuple[bytes, ...]:
        """The chunks of the state; equal on all members that applied the same entries."""
        whole = _encode_state((self.applied, self.values))
        size = self.chunk_bytes
        return tuple([whole[at : at + size] for at in range(0, len(whole), size)])

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Replace the state by the one in the chunks."""
        self.applied, self.values = _decode_state(b"".join(chunks))
