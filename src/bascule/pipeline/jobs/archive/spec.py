"""The spec of an archive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from bascule.pipeline.jobs.model import fault_of, refuse
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
from bascule.pipeline.trigger import trigger_of
from bascule.wire.offsets import check_consumer

OFFSETS_PER_TRIGGER: Final = 5_000_000
"""A few seconds of work: a crash loses no more, and the commit costs little in proportion."""
BYTES_PER_TRIGGER: Final = 1 << 30
"""The limit for large records, estimated from the log's average record size."""
FILE_BYTES: Final = 128 << 20
"""Target size of a compacted file."""
LEAST: Final = {
    "offsets_per_trigger_max": 1,
    "bytes_per_trigger_max": 1,
    "file_bytes": 1,
    "retry_timeout_ms": 1,
    "tasks": 0,
    "compact_every": 0,
}
"""Field of the spec -> its smallest value."""


class ArchiveSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream into a lake table, exactly once by offsets."""

    name: str
    """Name of the pipeline, and of the consumer under which the archive commits offsets."""
    stream: str
    table: TableSpec
    server: str = ""
    """HTTP address of the node. Default: BASCULE_SERVER, then http://127.0.0.1:9080."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Start of an empty table. A table with rows continues at its end."""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """valueFormat, valueSchema and so on, as `ValueSpec.from_options` takes them."""
    raw: bool = False
    """Also keep the bytes of typed values, so that a replay publishes identical bytes."""
    checkpoint: str | None = None
    """Spark's checkpoint directory. None: a temporary directory. The table alone decides what is
    archived."""
    trigger: str = "available-now"
    """`available-now` ends at the current end of the stream. `10s` runs a batch every 10 s."""
    offsets_per_trigger_max: int = OFFSETS_PER_TRIGGER
    bytes_per_trigger_max: int = BYTES_PER_TRIGGER
    tasks: int = 0
    """Tasks per batch; 0: one per core."""
    fail_on_data_loss: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long the node may be away."""
    commit_offsets: bool = True
    """Commit the table's end as consumer `name`. `retention_after = name` waits for these
    offsets."""
    compact_every: int = 0
    """Compact small files after so many commits; 0: never."""
    compact_at_end: bool = False
    file_bytes: int = FILE_BYTES
    expire_after_ms: int | None = None
    """Expire older snapshots at the end of a run and with every compaction; None: never."""

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from fault_of(lambda: check_consumer(self.name))
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}: expected at least {least}"
        yield from fault_of(lambda: trigger_of(self.trigger))
