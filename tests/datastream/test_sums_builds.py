"""Checksums that are built for readers of a part of a payload. Threads run when a test has them do
so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, cast

import pytest
from crc32c import crc32c

from bascule.datastream.disk import whole_reads
from bascule.datastream.disk.sums_builds import SumsBuilds
from bascule.datastream.disk.whole_reads import SLICE_BLOCKS, WholeReads
from bascule.datastream.ports import PayloadPlace
from bascule.errors import Broken, PayloadDamaged, PayloadMissing
from bascule.record.payload_links import Payload
from bascule.sim.disk import SimFiles
from bascule.storage.payloads import block_sums, payload_files, verified_file
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.messages import FetchPayload
from datastream.test_whole_reads import Threads
from support.payload_logs import have_whole, opened

BLOCK = 1_000
BLOCKS = 4 * SLICE_BLOCKS
DATA = Random(1).randbytes(BLOCKS * BLOCK - 7)
PAYLOAD = Payload("ab" * 16, len(DATA), crc32c(DATA))


class CountedFiles(SimFiles):
    """Counts the blocks that are read."""

    blocks = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> Any:
        file = super().open(path, create=create, write=write)
        read_at = file.read_at

        def read_and_count(at: int, length: int) -> bytes:
            data = bytes(read_at(at, length))
            self.blocks += bool(data) and path.endswith(".whole")
            return data

        file.read_at = read_and_count
        return file


class Here:
    """A node that has one payload, without the checksums of its blocks."""

    def __init__(self, data: bytes = DATA) -> None:
        self.files = CountedFiles(Random(1))
        self.log = opened(self.files)
        have_whole(self.log.payloads, PAYLOAD, data)
        self.short = Threads()
        self.reads = WholeReads(cast(Executor, self.short))
        self.long = cast(Threads, self.reads._threads)
        self.damaged: list[tuple[str, int]] = []
        self.builds = SumsBuilds(
            self.reads, lambda _, id, error, offset: self.damaged.append((id, offset))
        )
        self.told: dict[str, object] = {}
        self.gone: set[str] = set()

    def ask(self, name: str) -> None:
        """Have a reader ask for a part, until it waits."""
        place = PayloadPlace("models", b"m" * 16, 0, 1, (), 1, self.log, (1,), 0)
        fetch = FetchPayload("models", 0, PAYLOAD.id, 7, 5, 9)
        self.reads.run(
            self.builds.open_verified(place, fetch, PAYLOAD.id, None),
            lambda found, error: self.told.update({name: error or found}),
            is_wanted=lambda: name not in self.gone,
        )
        self.short.run()

    @property
    def has_sums(self) -> bool:
        return self.log.payloads.load_sums(PAYLOAD) is not None


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_reads, "ThreadPoolExecutor", Threads)
    for module in (block_sums, payload_files, verified_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)


def test_a_build_goes_on_without_its_reader() -> None:
    here = Here()
    here.ask("first")
    here.gone.add("first")
    here.long.run()
    assert here.has_sums
    assert isinstance(here.told["first"], Broken)
    here.ask("second")
    found = here.told["second"]
    assert isinstance(found, VerifiedFile)
    assert found.check(5, 4) == crc32c(DATA[5:9])
    assert here.files.blocks == BLOCKS + 1, "the range is read once more"


def test_all_who_ask_wait_for_one_build() -> None:
    here = Here()
    for name in "abc":
        here.ask(name)
        here.long.run(1)
    assert not here.told
    here.gone.add("a")
    here.long.run()
    assert [type(here.told[name]) for name in "abc"] == [Broken, VerifiedFile, VerifiedFile]
    assert here.files.blocks == BLOCKS


def test_those_who_wait_need_no_file_of_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    here = Here()
    monkeypatch.setattr(here.log.payloads, "save_sums", lambda *_: None)
    here.ask("a")
    here.ask("b")
    here.long.run()
    assert [type(here.told[name]) for name in "ab"] == [VerifiedFile] * 2


STOPS: dict[str, tuple[Callable[[Here], object], type[Exception]]] = {
    "removed": (lambda here: here.log.payloads.discard_whole(PAYLOAD.id), PayloadMissing),
    "closed": (lambda here: here.log.close(), Broken),
    "stopped": (lambda here: here.reads.close(), Broken),
}


@pytest.mark.parametrize("why", STOPS)
def test_a_build_stops_with_its_payload_its_log_and_its_node(why: str) -> None:
    stop, error = STOPS[why]
    here = Here()
    here.ask("a")
    here.ask("b")
    here.long.run(1)
    stop(here)
    here.long.run()
    assert [type(here.told[name]) for name in "ab"] == [error] * 2
    assert here.files.blocks == 2 + SLICE_BLOCKS, "the first step looks at two"
    assert not here.damaged


def test_damage_is_told_although_no_reader_waits() -> None:
    here = Here(bytes(len(DATA)))
    here.ask("first")
    here.gone.add("first")
    here.long.run()
    assert here.damaged == [(PAYLOAD.id, 7)]
    here.ask("second")
    here.long.run()
    assert isinstance(here.told["second"], PayloadDamaged)
    assert len(here.damaged) == 2
