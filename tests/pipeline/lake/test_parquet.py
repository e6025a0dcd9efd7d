"""The parquet format's own manifest: faults at every file operation, expiry, damage."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from bascule.errors import (
    ConfigError,
    CorruptData,
    ForeignTable,
    UnknownSnapshot,
    UnknownTable,
    UnsupportedFormat,
)
from bascule.host.api import Buffer
from bascule.host.real import RealFile
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.parquet import table as parquet
from bascule.pipeline.lake.parquet.manifest_folder import LinkingFiles
from support.lake_rows import SCHEMA, Lake, commit_of, data_files, offsets_in, records


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("parquet", tmp_path)


class FailingFile:
    """A file whose writes and syncs count."""

    def __init__(self, file: RealFile, files: FailingFiles) -> None:
        self._file = file
        self._files = files

    def append(self, *data: Buffer) -> None:
        self._files.count("append")
        self._file.append(*data)

    def sync(self) -> None:
        self._files.count("sync")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class FailingFiles(LinkingFiles):
    """Fails the n-th operation that changes the disk, before or after it took effect."""

    def __init__(self, fail_at: int, *, after: bool = False) -> None:
        self.left = fail_at
        self.after = after
        self.failed = ""

    def count(self, what: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = what
            raise OSError(errno.EIO, f"the {what} failed")

    def changing(self, what: str, change: Callable[[], None]) -> None:
        if self.after:
            change()
            self.count(what)
        else:
            self.count(what)
            change()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        self.count("open")
        return FailingFile(super().open(path, create=create, write=write), self)  # type: ignore[return-value]

    def link(self, source: str, target: str) -> None:
        self.changing("link", lambda: super(FailingFiles, self).link(source, target))

    def rename(self, source: str, target: str) -> None:
        self.changing("rename", lambda: super(FailingFiles, self).rename(source, target))

    def remove(self, path: str) -> None:
        self.changing("remove", lambda: super(FailingFiles, self).remove(path))

    def sync_dir(self, path: str) -> None:
        self.changing("sync_dir", lambda: super(FailingFiles, self).sync_dir(path))

    def make_dirs(self, path: str) -> None:
        self.changing("make_dirs", lambda: super(FailingFiles, self).make_dirs(path))


def sweep(run: Callable[[FailingFiles], None], check: Callable[[str], None]) -> int:
    """Run again and again, failing one operation later each time, until none fails."""
    failures = 0
    for after in (False, True):
        for fail_at in range(1, 200):
            files = FailingFiles(fail_at, after=after)
            try:
                run(files)
            except OSError:
                assert files.failed
            check(f"operation {fail_at} ({files.failed}, after={after})")
            if not files.failed:
                break
            failures += 1
    return failures


def test_a_commit_survives_any_failed_operation(lake: Lake) -> None:
    lake.create()
    ends = [0]

    def run(files: FailingFiles) -> None:
        table = parquet.open_table(lake.address(), files=files)
        snapshot = open_table(lake.address()).snapshot()
        ends[0] = snapshot.committed[0][1] if snapshot else 0
        table.commit(commit_of(table, records(0, ends[0], ends[0] + 10)))

    def check(what: str) -> None:
        table = open_table(lake.address())
        held = offsets_in(table).get(0, [])
        assert held == [*range(len(held))], what
        assert len(held) in (ends[0], ends[0] + 10), what
        # Whoever repeats it ends where an undisturbed one would have.
        table.commit(commit_of(table, records(0, ends[0], ends[0] + 10)))
        assert offsets_in(table) == {0: [*range(ends[0] + 10)]}, what

    assert sweep(run, check) >= 8


def test_compaction_and_expiry_survive_any_failed_operation(lake: Lake) -> None:
    made = lake.create()
    ends = [0]

    def run(files: FailingFiles) -> None:
        for _ in range(2):
            made.commit(commit_of(made, records(0, ends[0], ends[0] + 5)))
            ends[0] += 5
        table = parquet.open_table(lake.address(), files=files)
        table.compact(file_bytes=1 << 20)
        table.expire(older_than_ms=2**52, keep=2)

    def check(what: str) -> None:
        table = open_table(lake.address())
        assert offsets_in(table) == {0: [*range(ends[0])]}, what
        snapshots = lake.folder / "flights/_bascule/snapshots"
        held = sorted(snapshots.glob("*.json"))
        for path in (held[0], held[-1]):
            snapshot = table.snapshot(str(int(path.stem)))
            assert snapshot is not None, what
            end = snapshot.committed[0][1]
            assert offsets_in(table, snapshot.id) == {0: [*range(end)]}, what

    assert sweep(run, check) >= 15
    made.expire(older_than_ms=2**52)
    assert len(data_files(lake.folder)) == len(made.files(made.snapshot()))  # type: ignore[arg-type]
    assert not list(lake.folder.rglob("*.tmp")), "what failed runs left is gone"


def test_creation_survives_any_failed_operation(tmp_path: Path) -> None:
    lake = Lake("parquet", tmp_path)
    name = [""]

    def run(files: FailingFiles) -> None:
        name[0] = f"t{files.left}-{files.after}"
        parquet.create_table(lake.address(name[0]), SCHEMA, [], files=files)

    def check(what: str) -> None:
        try:
            open_table(lake.address(name[0]))
        except UnknownTable:
            lake.create(name=name[0])

    assert sweep(run, check) >= 5


def test_any_snapshot_of_a_long_history_is_read_in_few_files(lake: Lake) -> None:
    table = lake.create()
    for start in range(40):
        table.commit(commit_of(table, records(0, start, start + 1)))
    folder = lake.folder / "flights/_bascule/snapshots"
    for n in range(1, 41):
        assert offsets_in(table, str(n)) == {0: [*range(n)]}
        chain, at = 0, n
        while at:
            at = json.loads((folder / f"{at:020d}.json").read_text())["base"]
            chain += 1
        assert chain == n.bit_count()
    written = sum(len(json.loads(path.read_text())["added"]) for path in folder.iterdir())
    assert written <= 40 * 6


@pytest.mark.parametrize("commits", [1, 2, 7, 8, 9, 31])
@pytest.mark.parametrize("keep", [1, 2, 5])
def test_any_expiry_leaves_whole_snapshots(lake: Lake, commits: int, keep: int) -> None:
    table = lake.create()
    for start in range(commits):
        table.commit(commit_of(table, records(0, start, start + 1)))
    for round_ in range(3):
        table.expire(older_than_ms=2**52, keep=keep)
        fresh = open_table(lake.address())
        for path in (lake.folder / "flights/_bascule/snapshots").glob("*.json"):
            snapshot = fresh.snapshot(str(int(path.stem)))
            assert snapshot is not None
            assert offsets_in(fresh, snapshot.id) == {0: [*range(snapshot.committed[0][1])]}
        end = commits + round_
        assert offsets_in(fresh) == {0: [*range(end)]}
        fresh.commit(commit_of(fresh, records(0, end, end + 1)))


def test_a_torn_or_foreign_snapshot_is_named(lake: Lake) -> None:
    table = lake.create()
    table.commit(commit_of(table, records(0, 0, 5)))
    path = lake.folder / "flights/_bascule/snapshots" / f"{1:020d}.json"
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    with pytest.raises(CorruptData, match="is corrupt at byte 0"):
        open_table(lake.address()).snapshot()
    path.write_bytes(text.replace(b'"format":1', b'"format":9'))
    with pytest.raises(UnsupportedFormat, match="format version 9"):
        open_table(lake.address()).snapshot()


def test_a_missing_link_of_the_chain_is_corruption(lake: Lake) -> None:
    table = lake.create()
    for start in (0, 5, 10):
        table.commit(commit_of(table, records(0, start, start + 5)))
    (lake.folder / "flights/_bascule/snapshots" / f"{2:020d}.json").unlink()
    again = open_table(lake.address())
    snapshot = again.snapshot()
    assert snapshot is not None
    with pytest.raises(UnknownSnapshot):
        again.files(snapshot)
    with pytest.raises(CorruptData, match="snapshot 3 builds on"):
        again.commit(commit_of(again, records(0, 15, 20)))


def test_a_folder_of_something_else(lake: Lake) -> None:
    folder = lake.folder / "flights"
    folder.mkdir()
    with pytest.raises(UnknownTable):
        open_table(lake.address())
    (folder / "part-0.parquet").write_bytes(b"PAR1")
    for attempt in (lake.create, lambda: open_table(lake.address())):
        with pytest.raises(ForeignTable, match=r"holds 'part-0\.parquet'"):
            attempt()
    (lake.folder / "file").write_text("")
    with pytest.raises(ForeignTable, match="it is a file"):
        open_table(lake.address("file"))


def test_a_file_system_without_hard_links(lake: Lake) -> None:
    class Plain(LinkingFiles):
        def link(self, source: str, target: str) -> None:
            raise OSError(errno.EPERM, "no links here", target)

    with pytest.raises(ConfigError, match="without hard links"):
        parquet.create_table(lake.address(), SCHEMA, [], files=Plain())


def test_times_of_snapshots_ascend_although_the_clock_goes_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lake.create()
    clock = iter(range(2_000_000_000_000, 0, -3_600_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 1_000_000)
    times = []
    for start in (0, 10, 20):
        times.append(made.commit(commit_of(made, records(0, start, start + 10))).committed_ms)
    assert times == [2_000_000_000_000, 2_000_000_000_001, 2_000_000_000_002]


def test_a_commit_of_a_process_that_was_killed_has_its_name_on_the_disk_before_it_counts(
    lake: Lake,
) -> None:
    table = lake.create()
    commit = commit_of(table, records(0, 0, 10))
    table.commit(commit)

    class Synced(LinkingFiles):
        folders: ClassVar[set[str]] = set()

        def sync_dir(self, path: str) -> None:
            self.folders.add(path)
            super().sync_dir(path)

    parquet.open_table(lake.address(), files=Synced()).commit(commit)
    assert any(path.endswith("_bascule/snapshots") for path in Synced.folders)
