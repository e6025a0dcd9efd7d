"""What a node says of the streams on a subject, to a publisher that got no ack from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from bascule.client.admin import Admin
from bascule.errors import AcksNothing, BasculeError, Broken, UnknownStream
from bascule.model import AckPolicy, PartitionBy, StreamDefinition

ASK_TIMEOUT_S: Final = 2.0
"""For a node's answer; a publisher without one goes on as if streams acked."""

ENVELOPE_MAGIC: Final = b"\xb9\x0e\x43\xb4"
"""Begins a Liftbridge envelope, which has an ack policy of its own."""

WhySilent: TypeAlias = Callable[[bytes, str | None], Awaitable[AcksNothing | None]]
"""Why nobody acks the message of this frame, or why the named stream does not; None: it is not
known that nobody does."""


async def never_known(frame: bytes, stream: str | None) -> AcksNothing | None:
    """The answer where there is no node to ask."""
    return None


class SubjectInquiry:
    """Asks through an `Admin`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def has_stream(self, subject: str, stream: str | None) -> bool:
        """See `HasStream`. True also where no node answers in time."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if await self._admin.streams(subject):
                    return True
                if stream is None:
                    return False
                config = (await self._admin.stream(stream)).definition.config
                return config.partition_by is PartitionBy.MAPPING
        except UnknownStream:
            return False
        except (Broken, TimeoutError):
            return True

    async def why_silent(self, frame: bytes, stream: str | None) -> AcksNothing | None:
        """See `WhySilent`. None also where no node answers in time, or a message of no stream."""
        headers = _headers(frame)
        wanted = stream or headers.get("nats-expected-stream")
        policy = headers.get("bascule-ack") or ("envelope" if _is_envelope(frame) else None)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if wanted is not None:
                    found = [await self._admin.stream(wanted)]
                else:
                    found = await self._admin.streams(frame.split(b" ", 2)[1].decode())
        except (BasculeError, TimeoutError):
            return None
        silent = [_why_silent(info.definition, policy) for info in found]
        return None if None in silent or not silent else silent[0]


def _why_silent(definition: StreamDefinition, policy: str | None) -> AcksNothing | None:
    """Why a stream does not ack a message with this policy; None: it does."""
    name, config = definition.name, definition.config
    if not config.acks:
        return AcksNothing(name, f"`bascule stream alter {name} --acks` has it ack")
    if policy == AckPolicy.NONE:
        return AcksNothing(name, "leave out the header `Bascule-Ack: none`")
    if policy is None and not config.acks_usually:
        return AcksNothing(name, "add the header `Bascule-Ack: leader`")
    return None


def _headers(frame: bytes) -> dict[str, str]:
    """The headers of an encoded publish, their names in lower case."""
    if not frame.startswith(b"HPUB "):
        return {}
    line, _, rest = frame.partition(b"\r\n")
    block = rest[: int(line.split(b" ")[-2])]
    pairs = (text.partition(b":") for text in block.split(b"\r\n")[1:] if text)
    return {
        name.decode().lower(): value.decode(errors="replace").strip() for name, _, value in pairs
    }


def _is_envelope(frame: bytes) -> bool:
    line, _, rest = frame.partition(b"\r\n")
    at = int(line.split(b" ")[-2]) if line.startswith(b"HPUB ") else 0
    return rest.startswith(ENVELOPE_MAGIC, at)
