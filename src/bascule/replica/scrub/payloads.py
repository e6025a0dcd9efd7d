"""Reads the payloads of the records that a pass has read, and compares them with the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bascule.errors import PayloadDamaged, PayloadMissing
from bascule.record.header import HEADER_BYTES
from bascule.record.payload_links import PayloadLink, links_of
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.payload_log import PayloadLog, have_links
from bascule.storage.payloads.verified_file import is_damage, verify_payload


class DamagedPayload(NamedTuple):
    """The payload of a record that is damaged or lost, and how."""

    link: PayloadLink
    found: str


class ScrubbedPayloads:
    """The links of one step of a pass, and their payloads."""

    def __init__(self, store: PartitionLog) -> None:
        self._store = store if isinstance(store, PayloadLog) else None
        self._links: list[PayloadLink] = []

    def observe(self, data: memoryview) -> None:
        """Batches that were read and checked; of one that is larger than a read only the header."""
        if self._store is None or len(data) < HEADER_BYTES or not have_links(data):
            return
        if len(data) == HEADER_BYTES:
            offset = int.from_bytes(data[:8], "big")
            link = self._store.link_at(offset)
            self._links += [] if link is None else [link]
        else:
            self._links += links_of(data)

    def verify(self, on_block: Callable[[int], None]) -> Iterator[DamagedPayload]:
        """Read the payloads of all links observed since the last call; those that are not right,
        each as soon as it is found.

        Raises: what `on_block` raises; CorruptData; OSError of the log, and where a payload cannot
        be read although its file may be right.
        """
        links, self._links = self._links, []
        for link in links:
            found = self._verify_one(link, on_block)
            if found:
                yield DamagedPayload(link, found)

    def _verify_one(self, link: PayloadLink, on_block: Callable[[int], None]) -> str:
        store = self._store
        assert store is not None
        store.link_again(link)
        try:
            verify_payload(store.payloads, link, on_block)
        except (PayloadDamaged, PayloadMissing, OSError) as error:
            if not is_damage(error):
                raise
            # Not if retention, compaction or a truncation has removed the record meanwhile.
            is_there = store.link_at(link.offset) == link
            return str(error) if is_there else ""
        return ""
