"""What a node has received of one payload. Pure: the caller writes the bytes."""

from __future__ import annotations

from bascule.errors import PayloadDamaged, PayloadGap
from bascule.record.payload_links import Payload
from bascule.storage.payloads.block_sums import SumsBuilder
from bascule.wire.datastream.checksums import combine
from bascule.wire.datastream.frames import DataHead


class ReceivedPayload:
    """Positions only rise. A packet counts once all of it has come and its checksum is right."""

    def __init__(self, id: str, *, position: int = 0, crc: int = 0) -> None:
        self.id = id
        self.position = position
        """All bytes below it have come, and are in the file."""
        self.crc = crc
        """CRC-32C of the bytes below `position`."""
        self.sums = SumsBuilder(is_known=position == 0)
        """The checksums of the blocks below `position`."""
        self.synced = 0
        """All bytes below it are on the disk."""

    def skip(self, head: DataHead) -> int:
        """How many bytes at the beginning of a packet are here already.

        Raises: PayloadGap if bytes before it are missing.
        """
        if head.position > self.position:
            raise PayloadGap(self.id, head.position, self.position)
        return min(self.position - head.position, head.length)

    def on_packet(self, head: DataHead, *, crc: int, new_crc: int) -> bool:
        """All bytes of a packet have come, and the new ones are written; whether any were new.

        `crc` is that of the whole packet, as it has come, and `new_crc` that of the bytes that were
        not skipped. Raises: PayloadDamaged if it is not the one that its head says.
        """
        if crc != head.crc:
            where = f"checksum of {head.length} bytes at {head.position}"
            raise PayloadDamaged(self.id, where, f"{crc:08x}", f"{head.crc:08x}")
        new = head.position + head.length - self.position
        if new <= 0:
            return False
        self.crc = combine(self.crc, new_crc, new)
        self.sums.add(new_crc, new)
        self.position += new
        return True

    def on_synced(self, position: int) -> None:
        """The bytes below `position` are on the disk."""
        self.synced = max(self.synced, position)

    def check_whole(self, size: int, crc: int) -> Payload:
        """The payload, once its sender says that this is all.

        Raises: PayloadGap if bytes are missing; PayloadDamaged if the checksum or the number of
        bytes is another one.
        """
        if size > self.position:
            raise PayloadGap(self.id, size, self.position)
        if size < self.position:
            raise PayloadDamaged(self.id, "size", str(self.position), str(size))
        if crc != self.crc:
            raise PayloadDamaged(self.id, "checksum", f"{self.crc:08x}", f"{crc:08x}")
        return Payload(self.id, size, crc)
