"""The digest of the latest values: the same whatever compaction has removed, and no other."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest

from bascule.host.real import RealRandom
from bascule.model import Compression
from bascule.record.batch import Record
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import PartitionLog
from bascule.storage.scrub import latest
from bascule.storage.scrub.latest import LatestDigest, LatestValues
from support.keyed_logs import (
    SECRET,
    Model,
    Stored,
    append_keyed,
    close_segment,
    compact,
    held,
    open_keyed,
)
from support.stored_batches import put

Pairs = list[tuple[bytes | None, bytes | None]]
BATCHES: list[Pairs] = [
    [(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (None, b"no key")],
    [(b"d", b"1"), (b"a", b"2"), (b"e", b"1")],
    [(b"b", None), (b"f", None), (b"c", b"3")],
    [(b"g", b"1"), (b"d", b"2")],
]
END = sum(map(len, BATCHES))


class Log:
    def __init__(self, codec: Compression = Compression.NONE) -> None:
        self.files = SimFiles(RealRandom(1))
        self.log, self.model = open_keyed(self.files), Model()
        self.codec = codec

    def append(self, batches: list[Pairs]) -> Log:
        for pairs in batches:
            append_keyed(self.log, self.model, pairs, codec=self.codec)
        close_segment(self.log)
        append_keyed(self.log, self.model, [(b"z", b"active")])
        self.log.sync()
        return self

    def compacted(self, *times_ms: int) -> Log:
        for now_ms in times_ms:
            compact(self.files, self.log, now_ms=now_ms)
        return self

    def digest(self, limit: int = END) -> LatestValues | None:
        return digest(self.log, limit)


def digest(log: PartitionLog, limit: int = END) -> LatestValues | None:
    return LatestDigest(log, limit, SECRET).read(log.verify)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_compaction_changes_nothing(codec: Compression) -> None:
    """Neither the removed records, nor removed tombstones, nor the horizons of others."""
    expected = Log(codec).append(BATCHES).digest()
    assert expected is not None
    # a, c, d, e, g and the one without a key; b and f are removed.
    assert (expected.start, expected.limit, expected.records) == (0, END, 6)
    once, twice = (Log(codec).append(BATCHES).compacted(*times) for times in ((10,), (10, 20_000)))
    assert len(held(once.log)) > len(held(twice.log))
    assert [once.digest(), twice.digest()] == [expected, expected]


def wrong(change: Callable[[list[Record]], list[Record]]) -> PartitionLog:
    """A compacted log in which the second batch has other records. All CRCs are good."""
    made, offset = Log(), 0
    for number, pairs in enumerate(BATCHES):
        records = [
            Record(offset + n, 1_000, *pair, (("subject", b"s"),)) for n, pair in enumerate(pairs)
        ]
        kept = tuple(change(records) if number == 1 else records)
        put(made.log, Stored(kept, offset + len(pairs)).encode())
        offset += len(pairs)
    close_segment(made.log)
    append_keyed(made.log, Model(), [(b"z", b"active")])
    made.log.sync()
    return made.log


@pytest.mark.parametrize(
    "change",
    [
        lambda records: [records[0], records[2]],
        lambda records: [records[0], records[1]._replace(value=b"3"), records[2]],
        lambda records: [records[0], records[1]._replace(key=b"x"), records[2]],
        lambda records: [records[0], records[1]._replace(headers=()), records[2]],
        lambda records: [records[0], records[1]._replace(value=None), records[2]],
    ],
    ids=["missing", "value", "key", "header", "removed"],
)
def test_another_record_changes_it(change: Callable[[list[Record]], list[Record]]) -> None:
    expected = Log().append(BATCHES).compacted(10).digest()
    assert digest(wrong(lambda records: records)) == expected
    found = digest(wrong(change))
    assert found is not None
    assert found != expected


def test_a_lost_tombstone_brings_its_value_back() -> None:
    batches = [*BATCHES[:2], BATCHES[2][1:], BATCHES[3]]
    found, expected = Log().append(batches).digest(END - 1), Log().append(BATCHES).digest()
    assert found is not None
    assert expected is not None
    assert found.records == expected.records + 1


def test_what_cannot_be_compared_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Log().append(BATCHES)
    assert made.digest(END + 2) is None, "the log ends before"
    assert made.digest(7) is not None
    made.compacted(10)
    assert made.digest(7) is None, "records below are gone for later ones"
    assert made.digest() is not None
    monkeypatch.setattr(latest, "MAP_BYTES_MAX", 1)
    for number in range(30):
        append_keyed(
            made.log,
            made.model,
            [(b"%d" % each, b"v") for each in range(10 * number, 10 * number + 10)],
        )
    made.log.sync()
    assert made.digest(made.log.end.offset) is None, "the table of keys is full"


def test_a_segment_that_is_read_once_more_counts_once() -> None:
    log = Log().append(BATCHES).log

    def twice(at: object, observe: Callable[[memoryview], None]) -> object:
        log.verify(None, observe)
        return log.verify(None, observe)

    assert LatestDigest(log, END, SECRET).read(twice) == digest(log)  # type: ignore[arg-type]


def test_twins_agree(hot: Callable[[str], ModuleType]) -> None:
    keys, digests = hot("storage/compaction/keys/_hot"), hot("storage/scrub/_hot")
    data = Stored(
        tuple(
            Record(n, 1_000, b"k%d" % n, bytes([n, 255]) * n, (("h", b"\xff"),)) for n in range(9)
        ),
        9,
    ).encode()
    table = memoryview(bytearray(24 * 64)).cast("Q")
    seed, hashes = array("Q", (1, 2, 3, 4)), array("Q", bytes(8 * keys.HASH_WORDS))
    rows, actions = array("q", bytes(8 * keys.ROW_WORDS)), bytearray(20)
    plans, span, sums = array("q", bytes(8 * 3 * 2)), array("q", (0, 0)), array("Q", (1 << 63, 5))
    end = len(data)
    keys.plan_batches(data, end, table, seed, hashes, rows, 9, 0, actions, plans, span)
    assert digests.digest_latest(data, plans, 1, actions, sums)
    assert list(sums) == [SUM, 14]
    for cut in range(61, end):
        plans[1] = cut
        assert not digests.digest_latest(data, plans, 1, actions, sums)
    with pytest.raises(IndexError):
        digests.digest_latest(data, plans, 3, actions, sums)


SUM = 3_967_213_541_032_061_464
