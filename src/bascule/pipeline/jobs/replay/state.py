"""The state file of a replay, and the search for messages published after it was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow.compute as pc

from bascule.client.messages import ID_HEADER
from bascule.errors import ConfigError
from bascule.host.real import RealFiles

if TYPE_CHECKING:
    from bascule.client import SyncClient
    from bascule.pipeline.jobs.archive.plan import LogExtent

FILE: Final = "replay.json"


class ReplayState(msgspec.Struct, kw_only=True):
    """`replay.json`."""

    table: str
    stream_id: str
    """Id of the archived stream."""
    to: str
    to_id: str
    next: dict[str, int]
    """Partition of the archived stream -> the first offset not known to be published."""
    to_ends: dict[str, int]
    """Partition of the target -> its end when `next` was written. Messages that a killed run
    published after `next` have later offsets."""


def read_state(folder: str | None) -> ReplayState | None:
    """Read the state; None without a file. Raises: ConfigError for an invalid file."""
    if folder is None or not (path := Path(folder) / FILE).exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReplayState)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not the state of a replay: {error}") from error


def write_state(folder: str | None, state: ReplayState) -> None:
    """Replace the file atomically: after a crash it is the old or the new one."""
    if folder is None:
        return
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    files = RealFiles()
    file = files.open(str(beside), create=True)
    try:
        file.truncate(0)
        file.write_at(0, msgspec.json.encode(state))
        file.sync()
    finally:
        file.close()
    files.rename(str(beside), str(path))
    files.sync_dir(str(path.parent))


def check_same(state: ReplayState, now: ReplayState, folder: str | None) -> None:
    """Raises: ConfigError if the state belongs to another replay."""
    for name in ("table", "stream_id", "to", "to_id"):
        old, new = getattr(state, name), getattr(now, name)
        if old != new:
            raise ConfigError(
                f"{folder}/{FILE} belongs to another replay: {name} was {old!r} and is {new!r}; "
                "use another checkpoint, or remove the file to start again"
            )


def stored_since(client: SyncClient, state: ReplayState, target: LogExtent) -> dict[int, list[int]]:
    """Offsets by partition that the target received after `state`, found by their message ids.
    `target` is its extent."""
    prefix = f"{state.stream_id}.".encode()
    found: dict[int, list[int]] = {}
    for number, (first, end) in target.partitions.items():
        start = max(state.to_ends.get(str(number), first), first)
        if start >= end:
            continue
        batches = client.read_batches(state.to, start=start, end=end, partition=number)
        with batches:
            for batch in batches:
                entries = batch.column("headers").flatten()
                is_id = pc.equal(entries.field(0), ID_HEADER).to_numpy(zero_copy_only=False)
                ids = entries.field(1).take(np.flatnonzero(is_id)).to_pylist()
                for text in ids:
                    if text is not None and text.startswith(prefix):
                        partition, offset = text[len(prefix) :].split(b".")
                        found.setdefault(int(partition), []).append(int(offset))
    return {partition: sorted(offsets) for partition, offsets in found.items()}
