"""What disks do to logs: bytes flip, and files lose their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bascule.record.header import HEADER_BYTES, read_header
from bascule.sim.cluster.world.disk import MachineFiles
from bascule.sim.disk import Inode
from bascule.sim.prng import Prng

CRC_POSITION = 17
"""The CRC of a batch covers what is behind it. What is before it is checked by replicas and by
recovery, and not by consumers."""

Damage = Callable[[MachineFiles, str, Prng], str]
"""Damages a log in a directory; returns what was done, or an empty text."""
SMALL: Final = (
    "checkpoint", "clean-offset", "gaps", "leader-epochs", "message-ids", "partial-copy", "synced",
    "tombstones-end",
)  # fmt: skip
"""Files of a log beside its segments, their indexes and its payloads."""


def flip_bit(files: MachineFiles, directory: str, prng: Prng) -> str:
    """Flip a bit in a batch of a log, on the disk and in the page cache; what was done, or empty if
    there is no batch. Half of the time it is one of the last batches."""
    path, inode = _any_segment(files, directory, prng)
    starts = _batches(inode) if inode is not None else []
    if inode is None or not starts:
        return ""
    row = prng.below(len(starts))
    if prng.happens(0.5):
        row = max(len(starts) - 1 - prng.below(8), 0)
    end = starts[row + 1] if row + 1 < len(starts) else len(inode.data)
    return _flip(path, inode, prng.between(starts[row] + CRC_POSITION, end - 1), prng)


def flip_header(files: MachineFiles, directory: str, prng: Prng) -> str:
    """Flip a bit of a batch that no CRC covers: of its first offset, length, leader epoch or magic;
    what was done, or empty. Nobody has the log open: recovery and the scrubber are to find it."""
    path, inode = _any_segment(files, directory, prng)
    starts = _batches(inode) if inode is not None else []
    if inode is None or not starts:
        return ""
    return _flip(path, inode, prng.pick(starts) + prng.below(CRC_POSITION), prng)


def flip_small(files: MachineFiles, directory: str, prng: Prng) -> str:
    """Flip a bit in a file of a log that has no records, such as its leader epochs; what was done,
    or empty. Nobody has the log open."""
    names = files.list_dir(directory) if files.exists(directory) else []
    paths = [f"{directory}/{name}" for name in sorted(names) if _is_small(name)]
    paths = [path for path in paths if files._inode(path).data]
    if not paths:
        return ""
    path = prng.pick(paths)
    inode = files._inode(path)
    return _flip(path, inode, prng.below(len(inode.data)), prng)


def _is_small(name: str) -> bool:
    return name in SMALL or name.endswith((".index", ".timeindex"))


def flip_payload(files: MachineFiles, directory: str, prng: Prng) -> tuple[str, str]:
    """Flip a bit in the file of a linked payload of a log; what was done and the payload's id, or
    empty if there is none."""
    where = f"{directory}/payloads"
    names = files.list_dir(where) if files.exists(where) else []
    found = [(f"{where}/{name}", name[21:53]) for name in names if name.endswith(".linked")]
    found = [(path, id) for path, id in found if files._inode(path).data]
    if not found:
        return "", ""
    path, id = prng.pick(found)
    inode = files._inode(path)
    return _flip(path, inode, prng.below(len(inode.data)), prng), id


def cut_end(files: MachineFiles, directory: str, prng: Prng) -> str:
    """Cut a segment of a log that nobody has open; what was done, or empty."""
    path, inode = _any_segment(files, directory, prng)
    if inode is None or not inode.data:
        return ""
    size = prng.below(len(inode.data))
    del inode.data[size:]
    del inode.disk[size:]
    return f"{path} to {size} bytes"


def _flip(path: str, inode: Inode, at: int, prng: Prng) -> str:
    """Flip a bit of the byte `at` of a file, on the disk and in the page cache; what was done."""
    flipped = inode.data[at] ^ 1 << prng.below(8)
    for data in (inode.data, inode.disk):
        if at < len(data):
            data[at] = flipped
    return f"byte {at} of {path}"


def _any_segment(files: MachineFiles, directory: str, prng: Prng) -> tuple[str, Inode | None]:
    if not files.exists(directory):
        return "", None
    names = sorted(name for name in files.list_dir(directory) if name.endswith(".log"))
    if not names:
        return "", None
    path = f"{directory}/{prng.pick(names) if len(names) > 1 else names[0]}"
    return path, files._inode(path)


def _batches(inode: Inode) -> list[int]:
    """Where whole batches begin."""
    starts, at = [], 0
    while at + HEADER_BYTES <= len(inode.data):
        header = read_header(inode.data, at)
        if header.batch_length < HEADER_BYTES - 12 or at + header.total_bytes > len(inode.data):
            break
        starts.append(at)
        at += header.total_bytes
    return starts
