"""An ASGI extension: bytes of a file go to the socket by `sendfile`."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

import h11

from bascule.host.api import File

SENDFILE: Final = "bascule.sendfile"
"""The key in the `extensions` of a scope."""
STEP_BYTES: Final = 256 << 10
"""A client has the time for a stalled response for so many bytes."""


class SendFile(Protocol):
    """After the start of a response that has a length, in the place of bodies."""

    async def __call__(self, file: File, position: int, length: int) -> None:
        """Send these bytes of the file. Raises: OSError if the client has gone."""
        ...


class _Bytes:
    """In the place of bytes: h11 counts them only."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


async def send_file(
    transport: asyncio.Transport,
    connection: h11.Connection,
    file: File,
    position: int,
    length: int,
    *,
    stall_seconds_max: float,
) -> None:
    """As `SendFile`. A client that takes no step within the time is closed."""
    loop = asyncio.get_running_loop()
    uncounted: Any = _Bytes(length)
    connection.send_with_data_passthrough(h11.Data(data=uncounted))
    while length:
        step = min(length, STEP_BYTES)
        if transport.is_closing():
            raise ConnectionResetError("the client has gone")
        try:
            async with asyncio.timeout(stall_seconds_max):
                sent = await loop.sendfile(transport, file, position, step)  # type: ignore[arg-type]
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError("the client does not read") from None
        except RuntimeError as error:  # of asyncio, for a transport that closes
            raise ConnectionResetError(str(error)) from error
        if sent != step:
            transport.abort()
            raise OSError(f"{file.path} ends at {position + sent}, expected more")
        position, length = position + step, length - step
