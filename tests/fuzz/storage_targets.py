"""A log's directory in which one file is not what was written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.record.batch import RecordBatch
from bascule.record.header import read_header
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from fuzz.target import Target
from support.keyed_logs import Model, append_keyed, compact, held_batches
from support.stored_batches import DIRECTORY, append, make_batch, open_log

CONFIG = LogConfig(segment_bytes_max=400, index_interval_bytes=200)


@dataclass(frozen=True)
class Scene:
    """A directory as it was left, and what is in it."""

    name: str
    content: dict[str, bytes]
    batches: tuple[bytes, ...]
    kept: int
    """Batches that no damage above the recovery point can take away."""
    start_offset: int = 0

    @property
    def files(self) -> list[str]:
        return sorted(self.content)


def load(content: dict[str, bytes]) -> SimFiles:
    files = SimFiles(RealRandom(1))
    files.make_dirs(DIRECTORY)
    for name, data in content.items():
        file = files.open(f"{DIRECTORY}/{name}", create=True)
        file.append(data)
        file.sync()
    files.sync_dir(DIRECTORY)
    return files


def content_of(files: SimFiles) -> dict[str, bytes]:
    return {name: files.read_bytes(f"{DIRECTORY}/{name}") for name in files.list_dir(DIRECTORY)}


def _written(name: str, *, clean: bool, checkpoint_after: int, count: int = 8) -> Scene:
    """Batches of three records in segments of two batches, leaders changing on the way."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = []
    for n in range(count):
        batches.append(append(log, 3, size=20, timestamp=n, leader_epoch=n // 3))
        log.sync()
        if n + 1 == checkpoint_after:
            log.checkpoint(high_watermark=log.end.offset)
    if clean:
        log.close()
    kept = count if clean else checkpoint_after
    return Scene(name, content_of(files), tuple(batches), kept)


def _begun_late() -> Scene:
    """A log whose start lies within a batch: what is below it must never be seen again."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = [append(log, 3, size=20, timestamp=n) for n in range(8)]
    log.sync()
    log.advance_start(10, high_watermark=log.end.offset)
    log.close()
    return Scene("begun late", content_of(files), tuple(batches), 8, start_offset=10)


def _compacted() -> Scene:
    """A log of keys, its closed segments compacted: offsets are missing between batches."""
    files, model = SimFiles(RealRandom(1)), Model()
    log = open_log(files, CONFIG)
    for n in range(10):
        append_keyed(log, model, [(b"k%d" % (n % 3), b"v%d" % n), (b"own%d" % n, b"x" * 20)])
    log.sync()
    log.checkpoint(high_watermark=log.end.offset)
    done = compact(files, log, now_ms=5_000, segment_bytes_max=400)
    assert done.records_removed > 0
    log.close()
    held = held_batches(open_log(load(content_of(files)), CONFIG))
    return Scene("compacted", content_of(files), tuple(held), len(held))


def _truncated() -> Scene:
    """A replica's log whose end was cut off, in the middle of a segment; another leader follows."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = [append(log, 3, size=20, timestamp=n // 2, leader_epoch=n // 3) for n in range(8)]
    log.checkpoint(high_watermark=0)
    log.truncate_to(15, 5, high_watermark=0)
    new = [make_batch(15 + n, timestamp=3 + n, leader_epoch=5) for n in range(4)]
    log.append_as_follower(b"".join(new))
    log.sync()
    return Scene("truncated", content_of(files), (*batches[:5], *new), 5)


def _replicated_gaps() -> Scene:
    """A follower of a leader whose log was compacted."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = [make_batch(n * n, 2, timestamp=n, leader_epoch=n // 3) for n in range(2, 10)]
    for batch in batches:
        log.append_as_follower(batch)
    log.close()
    return Scene("replicated gaps", content_of(files), tuple(batches), len(batches))


def _begun_again() -> Scene:
    """A replica that has thrown its log away and begun at its leader's start."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    for n in range(6):
        append(log, 3, size=20, timestamp=n)
    log.start_at(50, 2)
    batches = [make_batch(50 + 2 * n, 2, timestamp=n, leader_epoch=2) for n in range(3)]
    log.append_as_follower(b"".join(batches))
    log.sync()
    return Scene("begun again", content_of(files), tuple(batches), 0, start_offset=50)


@cache
def scenes() -> list[Scene]:
    return [
        _written("closed", clean=True, checkpoint_after=0),
        _written("killed after a checkpoint", clean=False, checkpoint_after=5),
        _written("killed before any checkpoint", clean=False, checkpoint_after=0),
        _written("one segment", clean=False, checkpoint_after=1, count=2),
        _begun_late(),
        _compacted(),
        _truncated(),
        _replicated_gaps(),
        _begun_again(),
    ]


def check_damaged(scene: Scene, name: str, data: bytes) -> str:
    """Open the scene with `data` as its file `name`: what it serves was written, or it refuses.

    Returns "served", "cut" where a tail above the recovery point was taken for torn, or "refused".
    """
    files = load({**scene.content, name: data})
    try:
        log = open_log(files, CONFIG)
        # Before every byte was checked, as a consumer reads just after the start.
        held = read_as_a_consumer(log)
        check_all(log)
        assert held is not None, f"{name}: consumers saw a wrong CRC that the log does not see"
        found = [log.find_timestamp(n, end=log.end) for n in range(8)]
    except CorruptData as damage:
        assert damage.file.startswith(f"{DIRECTORY}/"), damage
        assert damage.at >= 0, damage
        return "refused"
    assert log.start_offset == scene.start_offset, f"{name}: the log starts elsewhere"
    known = [b for b in scene.batches if read_header(b).end_offset > scene.start_offset]
    assert held == known[: len(held)], f"{name}: other batches than were written"
    assert found == timestamps(held, scene.start_offset), f"{name}: {found}"
    lost = len(known) - len(held)
    assert lost <= len(scene.batches) - scene.kept, f"{name}: {lost} batches are lost"
    if lost:
        assert name.endswith(".log"), f"{name} is damaged, and batches are gone"
    log.close()
    again = open_log(files, CONFIG)
    assert held_batches(again) == held
    return "cut" if lost else "served"


def read_as_a_consumer(log: PartitionLog) -> list[bytes] | None:
    """What is held; None where a consumer refuses it for a wrong CRC."""
    try:
        return held_batches(log)
    except CorruptData as damage:
        if damage.file == "buffer":
            return None
        raise


def timestamps(batches: list[bytes], start_offset: int) -> list[tuple[int, int] | None]:
    """What looking for timestamps 0 to 7 is to find."""
    held = [record for batch in batches for record in RecordBatch(batch)]
    records = [record for record in held if record.offset >= start_offset]
    return [
        next(((r.offset, r.timestamp) for r in records if r.timestamp >= wanted), None)
        for wanted in range(8)
    ]


def check_all(log: PartitionLog) -> None:
    at = log.verify()
    while at is not None:
        at = log.verify(at)


def run_directory(data: bytes) -> None:
    if len(data) < 2:
        return
    scene = scenes()[data[0] % len(scenes())]
    check_damaged(scene, scene.files[data[1] % len(scene.files)], data[2:])


def _seeds() -> list[bytes]:
    return [
        bytes((number, row)) + scene.content[name]
        for number, scene in enumerate(scenes())
        for row, name in enumerate(scene.files)
    ]


TARGETS = [Target("log-directory", _seeds, run_directory)]
