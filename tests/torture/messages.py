"""What is published, and the files that remember what was acked and what was read.

A message is its publisher and its number: its subject, its key and every byte of its value follow
from them. So content is compared with two integers for each record, however long a run is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

NUMBER_BITS: Final = 40
"""An identity is `publisher << NUMBER_BITS | number`."""
NO_RECORD: Final = -1
"""Instead of an identity, where there is no record."""
FOREIGN: Final = -2
"""Of a record that no publisher has sent in this form."""
KEYS: Final = 251
SUBJECTS: Final = 16
DEDUPE_WINDOW_S: Final = 300
FILLER: Final = bytes(97 + n % 26 for n in range(400))
HEAD: Final = re.compile(rb"(\d+) (\d+) ")

ACK = np.dtype(
    [
        ("sent", "f8"),
        ("acked", "f8"),
        ("number", "i8"),
        ("offset", "i8"),
        ("publisher", "i4"),
        ("partition", "i4"),
        ("times", "i4"),
        ("connection", "i4"),
        ("replicas", "i4"),
        ("is_again", "i4"),
    ]
)
"""One ack: when the message was sent for the first time, how often it was sent until then, and on
which connection the first time. `is_again`: an earlier ack of the same message is in the file."""


@dataclass(frozen=True)
class TorturedStream:
    """A stream of the run, and what its publishers are promised."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    publishers: int = 1

    @property
    def partitions(self) -> int:
        return int(self.config.get("partitions", 1))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup", ())

    @property
    def is_kept(self) -> bool:
        """Whether acked messages are promised to stay: under `all`, synced before each ack."""
        return self.config.get("ack_policy", "all") == "all"

    def body(self) -> dict[str, Any]:
        """What creates it."""
        return {
            "name": self.name,
            "subject": f"{self.name}.>",
            "replicas": 3,
            "sync": "always",
            "dedupe_window_ms": DEDUPE_WINDOW_S * 1_000,
            "segment_bytes_max": 4 << 20,
            **self.config,
        }


STREAMS: Final = (
    TorturedStream("orders", {"partitions": 4, "partition_by": "subject"}, publishers=2),
    TorturedStream("single"),
    TorturedStream("grouped", {"partitions": 2, "partition_by": "group"}),
    TorturedStream("wide", {"partitions": 2, "partition_by": "key", "replicas": 5}),
    TorturedStream(
        "keys",
        {
            "partitions": 2,
            "partition_by": "key",
            "cleanup": ["compact"],
            "segment_bytes_max": 1 << 19,
            "dirty_percent_min": 20,
        },
    ),
    TorturedStream("quick", {"ack_policy": "leader"}),
)


def streams_named(names: Iterable[str]) -> list[TorturedStream]:
    """Some of the streams, in their order."""
    chosen = set(names)
    return [stream for stream in STREAMS if stream.name in chosen]


def publishers_of(streams: Iterable[TorturedStream] = STREAMS) -> list[TorturedStream]:
    """The stream of each publisher, by the publisher's number."""
    return [stream for stream in streams for _ in range(stream.publishers)]


def identity_of(publisher: int, number: int) -> int:
    return publisher << NUMBER_BITS | number


def told(identity: int) -> str:
    """An identity for people."""
    if identity in (NO_RECORD, FOREIGN):
        return "no record" if identity == NO_RECORD else "a record that nobody has sent"
    return f"message {identity & (1 << NUMBER_BITS) - 1} of publisher {identity >> NUMBER_BITS}"


def value_of(publisher: int, number: int) -> bytes:
    return b"%d %d " % (publisher, number) + FILLER[: 40 + number * 37 % 300]


def key_of(publisher: int, number: int) -> bytes:
    return b"%d.%d" % (publisher, number % KEYS)


def key_number(identity: int) -> int:
    """The same for two messages of one key, and for no others."""
    return (identity >> NUMBER_BITS) * KEYS + (identity & (1 << NUMBER_BITS) - 1) % KEYS


def identity_in(value: bytes | None) -> int:
    """Which message a value is, if it is one to its last byte."""
    found = HEAD.match(value or b"")
    if found is None:
        return FOREIGN
    publisher, number = int(found[1]), int(found[2])
    return identity_of(publisher, number) if value == value_of(publisher, number) else FOREIGN


class AckFile:
    """Appends acks; each call of `flush` makes them visible to other processes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._rows: list[tuple[Any, ...]] = []

    def add(self, *row: float) -> None:
        """The fields of `ACK` in order."""
        self._rows.append(row)

    def flush(self) -> None:
        if self._rows:
            self._file.write(np.array(self._rows, dtype=ACK).tobytes())
            self._file.flush()
            self._rows.clear()

    def close(self) -> None:
        self.flush()
        self._file.close()


def read_acks(path: Path) -> np.ndarray:
    """All acks of a file; the last one may be incomplete while it is written."""
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) // ACK.itemsize * ACK.itemsize], dtype=ACK)
