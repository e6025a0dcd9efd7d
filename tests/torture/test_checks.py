"""Each fault that is planted in the evidence of a run is reported, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bascule.record.batch import Record
from bascule.record.builder import build_batch
from torture.checks import Evidence, check, read_replicas
from torture.damage import damage_of
from torture.messages import (
    ACK,
    KEYS,
    NO_RECORD,
    TorturedStream,
    identity_in,
    identity_of,
    key_of,
    told,
    value_of,
)

COUNT = 40
STREAM = TorturedStream("orders")
COMPACTED = TorturedStream("keys", {"cleanup": ["compact"]})
NODES = (1, 2, 3)


def record(offset: int, number: int) -> Record:
    return Record(offset, 1_000 + offset, key_of(0, number), value_of(0, number))


def write_log(directory: Path, records: list[Record], *, epoch: int = 4) -> None:
    """A log of one segment, with two records in each batch."""
    directory.mkdir(parents=True, exist_ok=True)
    data = b""
    for at in range(0, len(records), 2):
        pair = records[at : at + 2]
        data += bytes(build_batch(pair, base_offset=pair[0].offset, leader_epoch=epoch))
    (directory / f"{0:020d}.log").write_bytes(data)


def acks_of(count: int, *, sent: float = 10.0, times: int = 1) -> np.ndarray:
    """Message n was acked at offset n."""
    rows = [(sent, sent + 0.1, n, n, 0, 0, times, 1, 3, 0) for n in range(count)]
    return np.array(rows, dtype=ACK)


class Scene:
    """The evidence of a run in which everything was kept, to be spoilt."""

    def __init__(self, directory: Path, stream: TorturedStream = STREAM) -> None:
        self.directory = directory
        self.stream = stream
        self.records = [record(n, n) for n in range(COUNT)]
        self.acks = acks_of(COUNT)
        self.read = np.array([identity_of(0, n) for n in range(COUNT)], "i8")
        for node in NODES:
            self.write(node, self.records)

    def write(self, node: int, records: list[Record], *, epoch: int = 4) -> None:
        write_log(self.directory / str(node), records, epoch=epoch)

    def findings(self) -> list[str]:
        replicas = read_replicas({node: self.directory / str(node) for node in NODES})
        place = self.stream.name, 0
        evidence = Evidence([self.stream], self.acks, {place: replicas}, {place: self.read})
        return check(evidence)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_run_in_which_everything_was_kept_has_no_findings(scene: Scene) -> None:
    assert scene.findings() == []


def lose_everywhere(scene: Scene) -> None:
    scene.records[7] = record(7, 900)
    for node in NODES:
        scene.write(node, scene.records)
    scene.read[7] = identity_of(0, 900)


def lose_at_one(scene: Scene) -> None:
    scene.write(2, scene.records[:-2])


def lose_in_the_middle(scene: Scene) -> None:
    scene.write(3, scene.records[:10] + scene.records[12:])


def store_twice(scene: Scene) -> None:
    for node in NODES:
        scene.write(node, [*scene.records, record(COUNT, 5), record(COUNT + 1, COUNT)])
    scene.read = np.append(scene.read, [identity_of(0, 5), identity_of(0, COUNT)])


def store_with_another_epoch(scene: Scene) -> None:
    scene.write(1, scene.records, epoch=5)


def change_a_timestamp(scene: Scene) -> None:
    changed = [*scene.records[:3], scene.records[3]._replace(timestamp=5), *scene.records[4:]]
    scene.write(1, changed)


def reorder(scene: Scene) -> None:
    scene.records[20], scene.records[21] = record(20, 21), record(21, 20)
    for node in NODES:
        scene.write(node, scene.records)
    scene.acks["offset"][[20, 21]] = 21, 20
    scene.read[[20, 21]] = scene.read[[21, 20]]


def read_another_record(scene: Scene) -> None:
    scene.read[11] = identity_of(0, 500)


def read_too_little(scene: Scene) -> None:
    scene.read = scene.read[:-1]


def read_with_a_gap(scene: Scene) -> None:
    scene.read[9] = NO_RECORD


def read_what_is_gone(scene: Scene) -> None:
    scene.read = np.append(scene.read, identity_of(0, COUNT))


def ack_twice(scene: Scene) -> None:
    again = np.array([(10.0, 12.0, 6, 30, 0, 0, 0, 0, 0, 1)], dtype=ACK)
    scene.acks = np.append(scene.acks, again)


def change_a_byte_of_a_value(scene: Scene) -> None:
    value = scene.records[8].value
    assert value is not None
    scene.records[8] = scene.records[8]._replace(value=value[:-1] + b"?")
    for node in NODES:
        scene.write(node, scene.records)


def flip_a_bit(scene: Scene) -> None:
    path = next((scene.directory / "2").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def remove_a_replica(scene: Scene) -> None:
    shutil.rmtree(scene.directory / "3")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lose_everywhere, "message 7 of publisher 0, sent 1 times, was acked at offset 7"),
        (lose_at_one, "the logs of the nodes 1 and 2 end at 40 and 38"),
        (lose_at_one, "on node 2: message 39 of publisher 0, sent 1 times, was acked at offset 39"),
        (lose_in_the_middle, "no record at offset 10"),
        (store_twice, "message 5 of publisher 0 is stored at the offsets [5, 40]"),
        (store_with_another_epoch, "nodes 1 and 2 have other records at offset 0"),
        (change_a_timestamp, "nodes 1 and 3 have other records at offset 3"),
        (reorder, "message 20 of publisher 0 is stored at offset 21, message 21 at 20"),
        (read_another_record, "read message 500 of publisher 0 at offset 11, where is message 11"),
        (read_too_little, "read up to 39, and the log ends at 40"),
        (read_with_a_gap, "offset 9 was never read"),
        (read_what_is_gone, "read up to 41, and the log ends at 40"),
        (ack_twice, "message 6 of publisher 0 was acked at the offsets [6, 30] of partition 0"),
        (change_a_byte_of_a_value, "offset 8 has a record that nobody has sent"),
        (flip_a_bit, "on node 2: the log cannot be read"),
        (remove_a_replica, "on node 3: the log cannot be read"),
    ],
)
def test_what_is_planted_is_found(
    scene: Scene, spoil: Callable[[Scene], None], expected: str
) -> None:
    spoil(scene)
    found = scene.findings()
    assert any(expected in each for each in found), found


def test_messages_sent_again_after_the_window_may_be_stored_twice(scene: Scene) -> None:
    store_twice(scene)
    scene.acks["acked"][5] = 1_000.0
    assert scene.findings() == []


def test_messages_that_were_sent_again_may_be_stored_in_another_order(scene: Scene) -> None:
    reorder(scene)
    scene.acks["times"][20] = 2
    assert scene.findings() == []


def test_compaction_removes_what_has_a_later_record_of_its_key_and_nothing_else(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, COMPACTED)
    numbers = [*range(COUNT), KEYS, KEYS + 1]
    every = [record(offset, number) for offset, number in enumerate(numbers)]
    kept = every[2:]  # replicas are not compacted at the same time
    for node, records in zip(NODES, (kept, every, every[:1] + kept), strict=True):
        scene.write(node, records)
    scene.read = np.array([identity_of(0, number) for number in numbers], "i8")
    assert scene.findings() == []
    scene.write(1, [*every[2:20], *every[21:]])
    found = scene.findings()
    assert any("message 20 of publisher 0, sent 1 times, was acked" in each for each in found)
    assert "('keys', 0): nodes 1 and 2 have other last records of keys" in found


def test_a_value_is_known_by_all_of_its_bytes() -> None:
    value = value_of(3, 77)
    assert told(identity_in(value)) == "message 77 of publisher 3"
    for spoilt in (value[:-1], value + b"x", value[:-1] + b"?", b"x", b"", None):
        assert told(identity_in(spoilt)) == "a record that nobody has sent"


def test_damage_of_a_log_is_found(scene: Scene) -> None:
    assert damage_of(scene.directory / "2") is None
    flip_a_bit(scene)
    assert damage_of(scene.directory / "2") is not None
