"""A log's directory in which one file is not what was written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from fuzz.target import Target
from stored_batches import DIRECTORY, append, open_log, read_batches

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


@cache
def scenes() -> list[Scene]:
    return [
        _written("closed", clean=True, checkpoint_after=0),
        _written("killed after a checkpoint", clean=False, checkpoint_after=5),
        _written("killed before any checkpoint", clean=False, checkpoint_after=0),
        _written("one segment", clean=False, checkpoint_after=1, count=2),
    ]


def check_damaged(scene: Scene, name: str, data: bytes) -> str:
    """Open the scene with `data` as its file `name`: what it serves was written, or it refuses.

    Returns "served", "cut" where a tail above the recovery point was taken for torn, or "refused".
    """
    files = load({**scene.content, name: data})
    try:
        log = open_log(files, CONFIG)
        held = read_batches(log, scene.start_offset)
        check_all(log)
        found = [log.find_timestamp(n, end=log.end) for n in range(len(held))]
    except CorruptData as damage:
        assert damage.file.startswith(f"{DIRECTORY}/"), damage
        assert damage.at >= 0, damage
        return "refused"
    assert tuple(held) == scene.batches[: len(held)], f"{name}: other batches than were written"
    assert found == [(n * 3, n) for n in range(len(held))], f"{name}: {found}"
    assert len(held) >= scene.kept, f"{name}: {len(held)} of {scene.kept} batches are left"
    if len(held) < len(scene.batches):
        assert name.endswith(".log"), f"{name} is damaged, and batches are gone"
    log.close()
    again = open_log(files, CONFIG)
    assert read_batches(again, scene.start_offset) == held
    return "served" if len(held) == len(scene.batches) else "cut"


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
