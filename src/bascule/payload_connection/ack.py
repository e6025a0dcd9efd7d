"""What a sender is told once the record of its payload is stored."""

from __future__ import annotations

from typing import Any, NamedTuple


class PayloadAck(NamedTuple):
    """The ack of a payload's record, as that of any message, and what the payload is."""

    stream: str
    seq: int
    offset: int
    partition: int
    replicas: int
    synced: bool
    payload_id: str
    payload_bytes: int
    payload_crc32c: int
    duplicate: bool = False

    @classmethod
    def from_json(cls, ack: dict[str, Any]) -> PayloadAck:
        """That of an ack as CLOSED has it."""
        payload = ack["payload"]
        return cls(
            stream=ack["stream"],
            seq=ack["seq"],
            offset=ack["offset"],
            partition=ack["partition"],
            replicas=ack["replicas"],
            synced=ack["synced"],
            payload_id=payload["id"],
            payload_bytes=payload["bytes"],
            payload_crc32c=int(payload["crc32c"], 16),
            duplicate=ack.get("duplicate", False),
        )
