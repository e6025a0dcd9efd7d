"""Reads payloads so that no damaged byte is taken for a good one."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO, ENOENT
from typing import Final

from crc32c import crc32c

from bascule.errors import PayloadDamaged, PayloadMissing
from bascule.host.api import File
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.block_steps import Steps, WaitingSteps, run_through
from bascule.storage.payloads.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    SumsBuilder,
    sums_of_one_block,
)
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.wire.datastream.checksums import combine

OnBlock = Callable[[int], None]
"""Called after each block was read, with its bytes."""
_NOTHING: Final[OnBlock] = lambda _: None  # noqa: E731
BuildSums = Callable[[PayloadFiles, Payload, File], WaitingSteps[BlockSums]]
"""Makes the checksums of the blocks of a whole payload from its file, and keeps them. Raises:
PayloadMissing, PayloadDamaged, OSError; Broken where that was stopped."""


class VerifiedFile:
    """A range of a payload, piece by piece. Belongs to one thread at a time."""

    def __init__(
        self, payloads: PayloadFiles, payload: Payload, file: File, sums: BlockSums | None
    ) -> None:
        """Use `open_verified`."""
        self.payload = payload
        self.file = file
        self.is_compared = sums is not None
        """Whether each piece is compared before it is given away; otherwise the end is."""
        self._payloads = payloads
        self._sums = sums
        self._builder = SumsBuilder()
        self._crc = 0

    def piece_length(self, position: int, end: int) -> int:
        """The bytes of the next piece; it ends with its block."""
        return min(end - position, BLOCK_BYTES - position % BLOCK_BYTES)

    def check(self, position: int, length: int) -> int:
        """The CRC-32C of a piece, after its block was compared. Raises: PayloadDamaged, OSError."""
        sums, id = self._sums, self.payload.id
        if sums is None:
            data = self.file.read_at(position, length)
            if len(data) != length:
                raise PayloadDamaged(id, f"bytes at {position}", str(len(data)), str(length))
            crc = crc32c(data)
            self._builder.add(crc, length)
            self._crc = combine(self._crc, crc, length)
            return crc
        block = position // BLOCK_BYTES
        at = block * BLOCK_BYTES
        data = self.file.read_at(at, min(BLOCK_BYTES, self.payload.size - at))
        sums.check(id, block, data)
        if length == len(data):
            return sums.crcs[block]
        return crc32c(memoryview(data)[position - at : position - at + length])

    def end(self) -> None:
        """All pieces were given away. Raises: PayloadDamaged if the whole is not right, and no
        piece was compared; OSError."""
        if self._sums is not None:
            return
        payload = self.payload
        if self._crc != payload.crc:
            raise PayloadDamaged(payload.id, "checksum", f"{self._crc:08x}", f"{payload.crc:08x}")
        sums = self._builder.sums(payload)
        if sums is not None:
            self._payloads.save_sums(payload.id, sums)


def is_damage(error: Exception) -> bool:
    """Whether who has read a payload of a record learnt that its file is damaged or lost. Any other
    error says nothing of the file: this node lacks memory, descriptors or rights."""
    if isinstance(error, OSError):
        return error.errno in (EIO, ENOENT)
    return isinstance(error, PayloadDamaged | PayloadMissing)


def build_kept_sums(payloads: PayloadFiles, payload: Payload, file: File) -> Steps[BlockSums]:
    """The checksums of the blocks of a whole payload, written as well. Raises: PayloadDamaged,
    OSError."""
    sums = yield from build_sums(file, payload)
    payloads.save_sums(payload.id, sums)
    return sums


def open_verified(
    payloads: PayloadFiles,
    id: str,
    start: int,
    end: int,
    *,
    link: PayloadLink | None = None,
    build: BuildSums = build_kept_sums,
) -> WaitingSteps[VerifiedFile]:
    """The bytes [start, end) of a whole payload, that of `link` if it is known which record is
    meant; `end` -1: up to its end.

    A part of a payload whose blocks have no checksums yet costs reading all of it once, which
    `build` does.

    Raises: PayloadMissing, PayloadDamaged, OSError; what `build` raises.
    """
    payload, file = payloads.open_whole(id) if link is None else payloads.open_linked(link)
    sums = payloads.load_sums(payload)
    is_behind = start >= payload.size or end > payload.size  # or the file was cut
    if is_behind and payload.size <= BLOCK_BYTES:
        sums = yield from build_sums(file, payload)
    elif sums is None and (start > 0 or 0 <= end < payload.size):
        sums = yield from build(payloads, payload, file)
    if sums is not None and sums.size != payload.size:
        raise PayloadDamaged(id, "size", str(payload.size), str(sums.size))
    return VerifiedFile(payloads, payload, file, sums)


def build_sums(file: File, payload: Payload, on_block: OnBlock = _NOTHING) -> Steps[BlockSums]:
    """Read a whole payload for the checksums of its blocks. Raises: PayloadDamaged, OSError."""
    builder, position, whole = SumsBuilder(), 0, 0
    if (size := file.size()) != payload.size:
        raise PayloadDamaged(payload.id, "size", str(size), str(payload.size))
    while data := file.read_at(position, BLOCK_BYTES):
        if position:
            yield
        crc = crc32c(data)
        builder.add(crc, len(data))
        whole = combine(whole, crc, len(data))
        position += len(data)
        on_block(len(data))
    sums = builder.sums(payload)
    if whole != payload.crc or sums is None:
        raise PayloadDamaged(payload.id, "checksum", f"{whole:08x}", f"{payload.crc:08x}")
    return sums


def keep_sums(payloads: PayloadFiles, payload: Payload, built: SumsBuilder) -> Steps[None]:
    """Write the checksums of the blocks of a payload that was received: those that `built` has
    of its packets, unless they had other sizes, or a part of them came before a restart.

    Raises: PayloadMissing, PayloadDamaged, OSError.
    """
    sums = built.sums(payload)
    if sums is None:
        sums = yield from build_sums(payloads.open_linked(PayloadLink(-1, payload))[1], payload)
    payloads.save_sums(payload.id, sums)


def verify_payload(payloads: PayloadFiles, link: PayloadLink, on_block: OnBlock) -> None:
    """Read the payload of a record, and compare it with what the record says.

    Missing checksums of its blocks, and wrong ones, are written if that is possible.

    Raises: PayloadMissing, PayloadDamaged, OSError; what `on_block` raises.
    """
    payload = link.payload
    _, file = payloads.open_linked(link)
    sums = run_through(build_sums(file, payload, on_block))
    known = payloads.load_sums(payload)
    if known is None or list(known.crcs) != list(sums.crcs) or known.size != sums.size:
        payloads.save_sums(payload.id, sums)


__all__ = [
    "BuildSums",
    "VerifiedFile",
    "build_kept_sums",
    "build_sums",
    "is_damage",
    "keep_sums",
    "open_verified",
    "sums_of_one_block",
    "verify_payload",
]
