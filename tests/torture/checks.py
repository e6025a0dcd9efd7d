"""Every ack against every replica, and against what consumers have read.

The nodes have stopped. Each replica's log is read from its files with the readers of the node
itself, which check every CRC. `Evidence` is everything that is known; `check` returns what of the
promises is broken, and finds nothing in a run where they hold.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from bascule.errors import BasculeError
from bascule.host.real import RealFiles
from bascule.record.batch import RecordBatch
from bascule.storage.scan import scan_batches
from torture.messages import (
    DEDUPE_WINDOW_S,
    FOREIGN,
    NO_RECORD,
    TorturedStream,
    identity_in,
    identity_of,
    key_number,
    told,
)

Place = tuple[str, int]
"""A stream and a partition."""
SHOWN: Final = 5
"""Findings of one kind for one place that are told in full."""


@dataclass
class ReplicaLog:
    """One replica as it is on the disk: the message at each offset, and a digest of each record."""

    identities: np.ndarray
    digests: np.ndarray
    damage: str = ""


@dataclass
class Evidence:
    """What is left of a run."""

    streams: Sequence[TorturedStream]
    acks: np.ndarray
    replicas: dict[Place, dict[int, ReplicaLog]]
    """Place -> node -> its log."""
    read: Mapping[Place, np.ndarray] = field(default_factory=dict)
    """What consumers have read: the message at each offset."""


def read_replicas(directories: Mapping[int, Path]) -> dict[int, ReplicaLog]:
    """Read the logs of all replicas of a partition; those of equal bytes are decoded once."""
    by_content: dict[bytes, ReplicaLog] = {}
    found = {}
    for node, directory in directories.items():
        content = hashlib.blake2b()
        for path in sorted(directory.glob("*.log")):
            content.update(path.read_bytes())
        key = content.digest() if directory.is_dir() else b""
        if key not in by_content:
            by_content[key] = read_replica(directory)
        found[node] = by_content[key]
    return found


def read_replica(directory: Path) -> ReplicaLog:
    """Read the log of one replica that nobody writes."""
    offsets: list[int] = []
    identities: list[int] = []
    digests: list[int] = []
    damage = ""
    try:
        for path in sorted(directory.glob("*.log")):
            file = RealFiles().open(str(path), write=False)
            for at, header in scan_batches(file, start=0, end=file.size()):
                if offsets and header.base_offset <= offsets[-1]:
                    raise ValueError(f"offset {header.base_offset} after {offsets[-1]} in {path}")
                batch = RecordBatch(file.read_at(at, header.total_bytes), origin=str(path))
                for record in batch:
                    offsets.append(record.offset)
                    identities.append(identity_in(record.value))
                    digests.append(_digest(header.leader_epoch, *record))
    except (BasculeError, ValueError) as error:
        damage = str(error)
    if not directory.is_dir():
        damage = f"{directory} does not exist"
    end = offsets[-1] + 1 if offsets else 0
    log = ReplicaLog(np.full(end, NO_RECORD, "i8"), np.zeros(end, "i8"), damage)
    log.identities[offsets] = identities
    log.digests[offsets] = digests
    return log


def _digest(*fields: object) -> int:
    """Of everything of a record that replicas have to agree on; never 0."""
    found = hashlib.blake2b(repr(fields).encode(), digest_size=8).digest()
    return int.from_bytes(found, "big", signed=True) or 1


def check(evidence: Evidence) -> list[str]:
    """What is broken, in words."""
    found: list[str] = []
    publisher = 0
    for stream in evidence.streams:
        numbers = range(publisher, publisher + stream.publishers)
        publisher += stream.publishers
        acks = evidence.acks[np.isin(evidence.acks["publisher"], numbers)]
        for partition in range(stream.partitions):
            place = stream.name, partition
            here = acks[acks["partition"] == partition]
            replicas = evidence.replicas.get(place, {})
            if not replicas:
                found.append(f"{place}: no replica was found")
            for nodes, log in _distinct(replicas):
                where = f"{place} on {nodes}"
                found += _told(where, _damage(log))
                if stream.is_kept:
                    found += _told(where, _lost(stream, here, log.identities))
                if not stream.is_compacted:
                    found += _told(where, _gaps(log.identities))
                    found += _told(where, _doubled(here, log.identities, stream))
            found += _told(str(place), _different(stream, replicas))
            if stream.is_kept:
                found += _told(str(place), _reordered(here))
            for log in replicas.values():
                found += _told(f"consumers of {place}", _misread(stream, evidence, place, log))
                break  # the replicas were compared
        if stream.is_kept:
            found += _told(stream.name, _acked_twice(acks, stream))
    return found


def _distinct(replicas: Mapping[int, ReplicaLog]) -> Iterable[tuple[str, ReplicaLog]]:
    """The logs, each with the nodes that have it: equal ones are one object."""
    for log in {id(log): log for log in replicas.values()}.values():
        nodes = [str(node) for node, each in sorted(replicas.items()) if each is log]
        yield f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}", log


def _told(where: str, findings: Iterable[str]) -> list[str]:
    every = list(findings)
    more = [f"{where}: {len(every) - SHOWN} more like these"] if len(every) > SHOWN else []
    return [f"{where}: {text}" for text in every[:SHOWN]] + more


def _damage(log: ReplicaLog) -> Iterable[str]:
    if log.damage:
        yield f"the log cannot be read: {log.damage}"
    for offset in np.flatnonzero(log.identities == FOREIGN):
        yield f"offset {offset} has a record that nobody has sent"


def _lost(stream: TorturedStream, acks: np.ndarray, stored: np.ndarray) -> Iterable[str]:
    """Acked messages that are not where their ack says."""
    acked = (acks["publisher"].astype("i8") << 40) | acks["number"]
    offsets = acks["offset"]
    at = np.full(len(acks), NO_RECORD, "i8")
    inside = offsets < len(stored)
    at[inside] = stored[offsets[inside]]
    wrong = np.flatnonzero(at != acked)
    if stream.is_compacted and len(wrong):
        last = _last_offsets(stored)
        wrong = np.array(
            [
                row for row in wrong
                if at[row] != NO_RECORD or last.get(key_number(int(acked[row])), -1) <= offsets[row]
            ],
            dtype="i8",
        )  # fmt: skip
    for row in wrong:
        sent = int(acks["times"][row])
        yield (
            f"{told(int(acked[row]))}, sent {sent} times, was acked at offset {offsets[row]}, "
            f"where is {told(int(at[row]))}; the log ends at {len(stored)}"
        )


def _last_offsets(stored: np.ndarray) -> dict[int, int]:
    """Key -> the offset of its last record."""
    offsets = np.flatnonzero(stored >= 0)
    return {key_number(int(stored[offset])): int(offset) for offset in offsets}


def _gaps(stored: np.ndarray) -> Iterable[str]:
    for offset in np.flatnonzero(stored == NO_RECORD):
        yield f"no record at offset {offset}, and the log ends at {len(stored)}"


def _doubled(acks: np.ndarray, stored: np.ndarray, stream: TorturedStream) -> Iterable[str]:
    """Messages stored twice although their publisher sent them within the dedupe window."""
    identities, counts = np.unique(stored, return_counts=True)
    twice = identities[(counts > 1) & (identities >= 0)]
    if not len(twice):
        return
    late = acks[acks["acked"] - acks["sent"] > DEDUPE_WINDOW_S]
    excused = {identity_of(int(a["publisher"]), int(a["number"])) for a in late}
    for identity in twice:
        if int(identity) not in excused:
            offsets = np.flatnonzero(stored == identity).tolist()
            yield f"{told(int(identity))} is stored at the offsets {offsets}"


def _different(stream: TorturedStream, replicas: Mapping[int, ReplicaLog]) -> Iterable[str]:
    """Replicas that do not have the same effective records."""
    for (one, first), (other, second) in combinations(sorted(replicas.items()), 2):
        if stream.is_compacted:
            end = min(len(first.digests), len(second.digests))
            left, right = first.digests[:end], second.digests[:end]
            for offset in np.flatnonzero((left != right) & (left != 0) & (right != 0)):
                yield f"nodes {one} and {other} have other records at offset {offset}"
            if _last_offsets(first.identities) != _last_offsets(second.identities):
                yield f"nodes {one} and {other} have other last records of keys"
        elif len(first.digests) != len(second.digests):
            ends = len(first.digests), len(second.digests)
            yield f"the logs of the nodes {one} and {other} end at {ends[0]} and {ends[1]}"
        else:
            for offset in np.flatnonzero(first.digests != second.digests):
                yield f"nodes {one} and {other} have other records at offset {offset}"


def _reordered(acks: np.ndarray) -> Iterable[str]:
    """Messages that were sent once, on one connection, and are stored in another order."""
    once = acks[(acks["times"] == 1) & (acks["is_again"] == 0)]
    groups: dict[tuple[int, int], None] = {
        (int(p), int(c)): None for p, c in zip(once["publisher"], once["connection"], strict=True)
    }
    for publisher, connection in groups:
        mine = once[(once["publisher"] == publisher) & (once["connection"] == connection)]
        mine = mine[np.argsort(mine["number"])]
        for at in np.flatnonzero(np.diff(mine["offset"]) < 0):
            before, after = mine[at], mine[at + 1]
            yield (
                f"message {before['number']} of publisher {publisher} is stored at offset "
                f"{before['offset']}, message {after['number']} at {after['offset']}"
            )


def _acked_twice(acks: np.ndarray, stream: TorturedStream) -> Iterable[str]:
    """Messages acked at two offsets of one partition."""
    places: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    again = {(int(a["publisher"]), int(a["number"])) for a in acks[acks["is_again"] == 1]}
    for ack in acks if again else ():
        message = int(ack["publisher"]), int(ack["number"])
        if message in again:
            places[(*message, int(ack["partition"]))].add(int(ack["offset"]))
    for (publisher, number, partition), offsets in places.items():
        if len(offsets) > 1:
            what = told(identity_of(publisher, number))
            yield f"{what} was acked at the offsets {sorted(offsets)} of partition {partition}"


def _misread(
    stream: TorturedStream, evidence: Evidence, place: Place, log: ReplicaLog
) -> Iterable[str]:
    """Offsets whose record is another one than consumers have read, and what nobody could read."""
    read = evidence.read.get(place)
    if read is None:
        return
    if len(read) > len(log.identities):
        yield f"read up to {len(read)}, and the log ends at {len(log.identities)}"
    end = min(len(read), len(log.identities))
    here, there = read[:end], log.identities[:end]
    for offset in np.flatnonzero((here != there) & (here != NO_RECORD) & (there != NO_RECORD)):
        yield (
            f"read {told(int(here[offset]))} at offset {offset}, "
            f"where is {told(int(there[offset]))} now"
        )
    if not stream.is_compacted:
        for offset in np.flatnonzero((here == NO_RECORD) & (there != NO_RECORD)):
            yield f"offset {offset} was never read"
        if len(read) < len(log.identities):
            yield f"read up to {len(read)}, and the log ends at {len(log.identities)}"
