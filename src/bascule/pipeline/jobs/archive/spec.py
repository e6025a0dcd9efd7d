"""What an archive is told to do."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bascule.errors import ConfigError
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.trigger import trigger_of
from bascule.wire.offsets import check_consumer

OFFSETS_PER_TRIGGER: Final = 5_000_000
"""Some seconds of work, so a crash loses no more; long enough that a commit costs little of it."""
BYTES_PER_TRIGGER: Final = 1 << 30
"""The same for large records, by the log's average."""
FILE_BYTES: Final = 128 << 20
"""A file that a compaction aims at."""


class ArchiveSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream into a lake table, exactly once by offsets."""

    name: str
    """Of the pipeline, and the consumer under which it commits how far it is."""
    stream: str
    table: TableSpec
    server: str = ""
    """The node's HTTP address; else BASCULE_SERVER, else http://127.0.0.1:9080."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where an empty table begins; one that holds something goes on at its end."""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """valueFormat, valueSchema and so on, as `ValueSpec.from_options` takes them."""
    raw: bool = False
    """Keep the bytes of a value beside its columns, so that a replay gives back every byte."""
    checkpoint: str | None = None
    """Spark's directory; None is one that goes with the run. The table alone says what is done."""
    trigger: str = "available-now"
    """`available-now` ends with what the stream holds now; `10s` goes on, a batch each 10 s."""
    offsets_per_trigger_max: int = OFFSETS_PER_TRIGGER
    bytes_per_trigger_max: int = BYTES_PER_TRIGGER
    tasks: int = 0
    """Of a batch; 0 is one for each core."""
    fail_on_data_loss: bool = True
    commit_offsets: bool = True
    """Commit how far the table is as consumer `name`: `retention_after = name` waits for it."""
    compact_every: int = 0
    """Join small files after so many commits; 0 is never."""
    compact_at_end: bool = False
    file_bytes: int = FILE_BYTES
    expire_after_ms: int | None = None
    """Forget snapshots older than this at the end and with every compaction; None is never."""

    def __post_init__(self) -> None:
        check_consumer(self.name)
        for name in ("offsets_per_trigger_max", "bytes_per_trigger_max", "file_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected at least 1")
        trigger_of(self.trigger)
