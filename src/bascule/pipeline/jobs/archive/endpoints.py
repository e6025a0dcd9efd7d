"""The two endpoints of an archive in one process: the stream's log, and the lake tables."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from bascule.errors import ConfigError, DataLoss, ForeignTable
from bascule.pipeline.clients import client_of
from bascule.pipeline.jobs.archive.commit import ArchiveCommitter
from bascule.pipeline.jobs.archive.plan import Committed, LogExtent, latest_begin
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.archive.task import ArchiveTaskSpec
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, archive_schema
from bascule.pipeline.jobs.tables import ensure_table
from bascule.pipeline.lake.address import malformed_address
from bascule.pipeline.retries import RETRY_TIMEOUT_MS, with_retries
from bascule.pipeline.source.extents import extent_client_of
from bascule.pipeline.source.options import Selection
from bascule.pipeline.values.spec import ValueSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.lake.model import LakeTable

log = logging.getLogger(__name__)

REQUESTS_AT_ONCE: Final = 8
"""Each request commits the offset of one partition."""
ORPHAN_AGE_MS: Final = 3_600_000
"""Younger files may belong to a batch that is not committed yet, whatever the age of the
snapshots."""


def log_extent_of(
    server: str, stream: str, *, retry_timeout_ms: int = RETRY_TIMEOUT_MS
) -> LogExtent:
    """Ask the leaders of the partitions for the extent of the log.

    The description of a stream has no end for a partition whose leader does not answer, and an end
    that is too low for one whose leader has just been elected.

    Raises: UnknownStream; PartitionFailed for a partition that has stopped; Broken if a partition
    had no leader that knew its end for `retry_timeout_ms`.
    """
    [extent] = extent_client_of(server).extents(
        Selection(names=(stream,)), retry_timeout_ms=retry_timeout_ms
    )
    info = with_retries(lambda: client_of(server).stream(stream), timeout_ms=retry_timeout_ms)
    return LogExtent(
        stream=stream,
        id=extent.id,
        partitions=extent.partitions,
        bytes=sum(p.bytes or 0 for p in info.partitions),
    )


@dataclass(frozen=True, slots=True)
class ArchiveEndpoints:
    """The stream of an archive, its table, and its table of malformed records."""

    spec: ArchiveSpec
    value: ValueSpec
    main: LakeTable
    side: LakeTable | None

    def read_state(self) -> tuple[LogExtent, Committed]:
        """The extent of the log, and the committed span of each stream partition. One request each.

        Raises: ConfigError if the table archives another stream; DataLoss if it archives another
        stream of the same name.
        """
        spec = self.spec
        held = log_extent_of(spec.server, spec.stream, retry_timeout_ms=spec.retry_timeout_ms)
        snapshot = self.main.snapshot()
        if snapshot is not None and snapshot.stream_id and snapshot.stream_id != held.id:
            if snapshot.stream != held.stream:
                raise ConfigError(
                    f"table {self.main.address} archives stream {snapshot.stream!r}: stream "
                    f"{held.stream!r} needs a table of its own"
                )
            raise DataLoss(
                held.stream,
                None,
                f"the table archives a stream of this name with id {snapshot.stream_id}, and the "
                f"node's has id {held.id}: it was deleted and created again, or it is on another "
                "node",
            )
        return held, {} if snapshot is None else snapshot.committed

    def check_stream(self, stream_id: str) -> None:
        """Check that the stream is still the one that tasks have read: they read by name.

        Raises: DataLoss if it was created again since; UnknownStream; Broken.
        """
        spec = self.spec
        held = log_extent_of(spec.server, spec.stream, retry_timeout_ms=spec.retry_timeout_ms)
        if held.id != stream_id:
            raise DataLoss(
                held.stream,
                None,
                f"the batch was planned for the stream with id {stream_id}, and the node's has id "
                f"{held.id}: it was deleted and created again meanwhile",
            )

    def committed(self) -> Committed:
        """The span that the table holds of each stream partition."""
        snapshot = self.main.snapshot()
        return {} if snapshot is None else snapshot.committed

    def malformed_ends(self) -> dict[int, int]:
        """The end offset of the table of malformed records, for each stream partition."""
        snapshot = None if self.side is None else self.side.snapshot()
        return {} if snapshot is None else {p: end for p, (_, end) in snapshot.committed.items()}

    def task_spec(self, stream_id: str) -> ArchiveTaskSpec:
        """The task description for this endpoint."""
        return ArchiveTaskSpec(
            server=self.spec.server,
            stream=self.spec.stream,
            stream_id=stream_id,
            value=self.value,
            raw=self.spec.raw,
            writer=self.main.writer(columns=archive_columns(self.spec, self.value).names),
            side_writer=(
                None if self.side is None else self.side.writer(columns=MALFORMED_SCHEMA.names)
            ),
            retry_timeout_ms=self.spec.retry_timeout_ms,
        )

    def committer(self) -> ArchiveCommitter:
        return ArchiveCommitter(self.spec.stream, self.main, self.side)

    def begin(self, held: LogExtent) -> dict[int, int]:
        """The initial offset of each partition for an empty table.

        With `starting_offsets = latest` these offsets are committed at once under the consumer's
        name, because nothing else records them while the table is empty.
        """
        if self.spec.starting_offsets == "earliest":
            return {partition: first for partition, (first, _) in held.partitions.items()}
        known = self._known_offsets()
        latest = latest_begin(held, self.committed(), known)
        if self.spec.commit_offsets:
            self._commit({p: end for p, end in latest.items() if p not in known})
        return latest

    def commit_offsets(self) -> None:
        """Commit the end of the table as the offsets of consumer `name`. Raises: as
        `reset_offsets`."""
        known = self._known_offsets()
        self._commit({p: end for p, (_, end) in self.committed().items() if known.get(p) != end})

    def _known_offsets(self) -> dict[int, int]:
        client = client_of(self.spec.server)
        found = client.offsets(consumer=self.spec.name, stream=self.spec.stream)
        return {entry.partition: entry.offset for entry in found}

    def _commit(self, ends: dict[int, int]) -> None:
        client = client_of(self.spec.server)

        def commit(partition: int) -> None:
            client.reset_offsets(
                self.spec.name, self.spec.stream, offset=ends[partition], partition=partition
            )

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            list(threads.map(commit, ends))

    def compact_and_expire(self) -> None:
        """Compact small files. Expire old snapshots if the spec has `expire_after_ms`."""
        for table in (self.main, self.side):
            if table is None:
                continue
            try:
                table.compact(file_bytes=self.spec.file_bytes)
            except ForeignTable as error:
                # Another program made files that cannot be read. The archive only adds files.
                log.warning("%s is not compacted: %s", table.address, error)
            if self.spec.expire_after_ms is not None:
                now = time.time_ns() // 1_000_000
                age = max(self.spec.expire_after_ms, ORPHAN_AGE_MS)
                table.expire(older_than_ms=now - age)


def open_endpoints(spec: ArchiveSpec) -> ArchiveEndpoints:
    """Open the tables; create those that do not exist."""
    value = ValueSpec.from_options({name.lower(): text for name, text in spec.value.items()})
    address = spec.table.address()
    by = spec.table.partition_by

    def stream() -> tuple[str, str]:
        held = log_extent_of(spec.server, spec.stream, retry_timeout_ms=spec.retry_timeout_ms)
        return spec.stream, held.id

    main = ensure_table(address, archive_columns(spec, value), by, stream=stream)
    side = None
    if not value.is_raw:
        side = ensure_table(malformed_address(address), MALFORMED_SCHEMA, stream=stream)
    return ArchiveEndpoints(spec, value, main, side)


def archive_columns(spec: ArchiveSpec, value: ValueSpec) -> pa.Schema:
    """The columns that the archive writes."""
    return archive_schema(value.arrow_type(), raw=spec.raw)


_endpoints: dict[bytes, ArchiveEndpoints] = {}


def endpoints_of(spec: ArchiveSpec) -> ArchiveEndpoints:
    """Return the endpoints of a spec; this process opens them once."""
    key = msgspec.json.encode(spec)
    endpoints = _endpoints.get(key)
    if endpoints is None:
        endpoints = _endpoints[key] = open_endpoints(spec)
    return endpoints
