"""Exceptions of payloads: content that is streamed beside the log."""

from __future__ import annotations

from bascule.errors.system import BasculeError


class PayloadMissing(BasculeError):
    """The payload `id` is not whole where it must be."""

    retriable = True

    def __init__(self, id: str, where: str) -> None:
        super().__init__(f"payload {id} is not in {where}")
        self.id = id
        self.where = where


class UnknownPayload(BasculeError):
    """The record at an offset has no payload, or there is no such record."""

    def __init__(self, stream: str, partition: int, offset: int) -> None:
        super().__init__(
            f"no payload at offset {offset} of stream {stream!r}, partition {partition}"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset


class PayloadGap(BasculeError):
    """Bytes of a payload are missing: `found` was sent where `expected` follows."""

    retriable = True

    def __init__(self, id: str, found: int, expected: int) -> None:
        super().__init__(
            f"payload {id}: bytes from position {found} on, expected them from {expected} on"
        )
        self.id = id
        self.found = found
        self.expected = expected


class PayloadDamaged(BasculeError):
    """Bytes of a payload do not have the checksum, or the number, that their sender says."""

    def __init__(self, id: str, what: str, found: str, expected: str) -> None:
        super().__init__(f"payload {id}: {what} {found}, expected {expected}")
        self.id = id
        self.what = what
        self.found = found
        self.expected = expected


class InvalidRoute(BasculeError):
    """A routing table does not reach each replica exactly once: `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"routing table is not valid: {why}")
        self.why = why
