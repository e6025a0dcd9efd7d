"""Bodies of responses about payloads."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class PayloadStored(Struct, kw_only=True):
    """The ack of the record of a payload."""

    stream: str
    partition: int
    offset: int
    seq: Annotated[int, Meta(description="offset + 1, as JetStream counts.")]
    replicas: int
    synced: bool
    id: Annotated[str, Meta(description="Of the payload, 32 hexadecimal digits.")]
    bytes: int
    crc32c: Annotated[str, Meta(description="Of its content, 8 hexadecimal digits.")]
    duplicate: Annotated[
        bool, Meta(description="It was stored before: the ack is that of the first time.")
    ]
    why: Annotated[str, Meta(description="Why the nodes forwarded it along this tree.")]
