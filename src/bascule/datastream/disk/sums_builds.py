"""Builds the checksums of the blocks of payloads that have none, for readers of a part of them.

That reads the whole payload, which may take longer than a reader waits. So a build that has begun
goes on without its reader, and the next one finds what it has written. There is one build of a
payload at a time, and all who ask for it meanwhile wait for its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from bascule.datastream.disk.whole_reads import SharedRead, WholeReads
from bascule.datastream.ports import PayloadPlace
from bascule.errors import Broken, PayloadDamaged, PayloadMissing
from bascule.host.api import File
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.block_steps import WaitingSteps
from bascule.storage.payloads.block_sums import BlockSums
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.verified_file import VerifiedFile, build_kept_sums, open_verified
from bascule.wire.datastream.messages import FetchPayload

OnDamage = Callable[[PayloadPlace, str, Exception, int], object]
"""A payload, by its id, could not be read for the record at an offset."""


class SumsBuilds:
    """Any thread may call it."""

    def __init__(self, reads: WholeReads, on_damage: OnDamage) -> None:
        """`reads` takes the blocks in turn with other reads, and stops with the node. `on_damage`
        is called once for each build that fails, also where no reader waits any more."""
        self._reads = reads
        self._on_damage = on_damage
        self._lock = threading.Lock()
        self._running: dict[tuple[PayloadFiles, Payload], SharedRead[BlockSums]] = {}

    def open_verified(
        self, place: PayloadPlace, fetch: FetchPayload, id: str, link: PayloadLink | None
    ) -> WaitingSteps[VerifiedFile]:
        """The bytes of a payload that are asked for, that of `link` if it is not None.

        Raises: PayloadMissing, PayloadDamaged, OSError; Broken where the log was closed, or the
        node stops, before the checksums of its blocks were made.
        """
        assert place.store is not None
        return open_verified(
            place.store.payloads, id, fetch.start, fetch.end,
            link=link, build=partial(self._build, place, fetch.offset),
        )  # fmt: skip

    def _build(
        self, place: PayloadPlace, offset: int, payloads: PayloadFiles, payload: Payload, file: File
    ) -> WaitingSteps[BlockSums]:
        """Wait for the build of a payload. Raises: as `open_verified`."""
        key = payloads, payload
        with self._lock:
            running = self._running.get(key)
            build = self._running[key] = running or SharedRead()
        if running is None:
            self._begin(build, place, offset, payload, file)
        yield build
        return build.result()

    def _begin(
        self,
        build: SharedRead[BlockSums],
        place: PayloadPlace,
        offset: int,
        payload: Payload,
        file: File,
    ) -> None:
        assert place.store is not None
        payloads = place.store.payloads

        def on_read(sums: BlockSums | None, error: Exception | None) -> None:
            with self._lock:
                del self._running[payloads, payload]
            if error is not None and not payloads.has(payload):
                error = PayloadMissing(payload.id, "this replica any more")
            elif isinstance(error, Broken):
                error = Broken(f"payload {payload.id} was not read to its end")
            build.end(sums, error)
            if isinstance(error, PayloadDamaged | OSError):
                self._on_damage(place, payload.id, error, offset)

        self._reads.run(
            build_kept_sums(payloads, payload, file), on_read,
            is_wanted=lambda: payloads.has(payload) and not place.is_closed,
        )  # fmt: skip
