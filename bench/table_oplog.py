"""The oplog of a table: writing, grouped syncs, search, catch-up, and what it costs a table.

No process, no network but a pipe: the code of a replica on one thread. The loop in Rust beside the
writes does what the article does that the format is from, one `write` for each record.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import statistics
import subprocess
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bascule.host.real import RealFiles
from bascule.tables import table_file
from bascule.tables._hot import AppliedRow
from bascule.tables.oplog import oplog as oplog_module
from bascule.tables.oplog.changes import Bounds
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Row, Rows
from bascule.tables.table_file import TableFile
from bench.harness import in_child, median_ratio, reap, report, row, work_directory

WRITES: Final = 4_000_000
GROUP: Final = 1_000
"""Operations of a transaction."""
KEYS: Final = 150_001
"""As many as the article has."""
ROUNDS: Final = 5
SEARCHES: Final = 20_000
TABLE_KEYS: Final = 10_000
TABLES_KEYS: Final = (TABLE_KEYS, 10 * TABLE_KEYS)
"""Of a table whose keys all change, and of one with others, too."""
TABLE_OPERATIONS: Final = 1_000_000
VALUE: Final = b"v" * 128
PAGE_ROWS: Final = 1_000
BYTES_MAX: Final = 1 << 40
"""One file, where nothing is removed."""
WRITES_PER_SECOND_MIN: Final = 1_000_000
SYNCED_MIN: Final = 0.8
SEARCH_US_MAX: Final = {1_000_000: 10.0, 10_000_000: 12.0}
CATCH_UP_MAX: Final = 1.5
APPLY_MAX: Final = 1.2
NOTED: Final = "coalesce(note(id), note(excluded.version), excluded.timestamp)"


def operations(count: int) -> list[array[int]]:
    """Groups of operations with ids from 1 on."""
    return [
        array("q", [n for id in range(at, at + GROUP) for n in (id, id % KEYS + 1, 1)])
        for at in range(1, count + 1, GROUP)
    ]


@contextmanager
def sync_after(records: int) -> Iterator[None]:
    before = oplog_module.SYNC_RECORDS
    oplog_module.SYNC_RECORDS = records  # type: ignore[misc]
    try:
        yield
    finally:
        oplog_module.SYNC_RECORDS = before  # type: ignore[misc]


def make_oplog(path: Path, bytes_max: int = BYTES_MAX) -> Oplog:
    made = Oplog(RealFiles(), str(path), table=7, bytes_max=bytes_max)
    made.begin(1)
    return made


def write_rate(path: Path, groups: list[array[int]], *, synced: bool) -> float:
    """Operations/s."""
    shutil.rmtree(path, ignore_errors=True)
    oplog = make_oplog(path)
    os.sync()
    with sync_after(oplog_module.SYNC_RECORDS if synced else 1 << 60):
        began = time.perf_counter()
        for group in groups:
            oplog.append(group)
        if synced:
            oplog.sync()
        ended = time.perf_counter()
    oplog.close()
    return GROUP * len(groups) / (ended - began)


def build_loop(directory: Path) -> Path | None:
    """The loop in Rust; None where there is no `rustc`."""
    if shutil.which("rustc") is None:
        print("no rustc: the loop in Rust is left out", flush=True)
        return None
    loop = directory / "loop"
    source = Path(__file__).with_name("oplog_loop.rs")
    subprocess.run(["rustc", "-O", "-o", str(loop), str(source)], check=True)
    return loop


def measure_writes(directory: Path, rounds: int, count: int) -> list[dict[str, Any]]:
    groups = operations(count)
    loop = build_loop(directory)
    unsynced, synced, beside = list[float](), list[float](), list[float]()
    for number in range(rounds):
        for is_synced in (False, True) if number % 2 else (True, False):
            rates = synced if is_synced else unsynced
            rates.append(write_rate(directory / "writes", groups, synced=is_synced))
        if loop is not None:
            command = [str(loop), str(directory / "loop.op"), str(count // 4)]
            beside.append(float(subprocess.run(command, check=True, capture_output=True).stdout))
    shutil.rmtree(directory / "writes")
    rate = {"value": round(statistics.median(unsynced)), "rates": [round(n) for n in unsynced]}
    rows = [row("oplog, operations/s, not synced", rate, at_least=WRITES_PER_SECOND_MIN)]
    if beside:
        figure = "oplog over a loop in Rust of one write each"
        rows.append(row(figure, median_ratio(unsynced, beside), at_least=1))
    figure = "oplog, synced in groups, over not synced"
    return [*rows, row(figure, median_ratio(synced, unsynced), at_least=SYNCED_MIN)]


def measure_search(directory: Path, count: int) -> dict[str, Any]:
    """With files as a node has them, of an eighth."""
    path = directory / f"search{count}"
    oplog = make_oplog(path, bytes_max=32 * count)
    for group in operations(count):
        oplog.append(group)
    mark = oplog.mark
    fresh = Oplog(RealFiles(), str(path), table=7, bytes_max=32 * count)
    fresh.open(mark, count)
    dice = random.Random(1)
    for since in range(0, count, count // 100):
        assert fresh.find(since, mark) is not None
    times = []
    for _ in range(SEARCHES):
        since = dice.randrange(count)
        began = time.perf_counter_ns()
        place = fresh.find(since, mark)
        times.append(time.perf_counter_ns() - began)
        assert place is not None
    fresh.close()
    files = len(os.listdir(path))
    shutil.rmtree(path)
    ordered = sorted(times)
    return row(
        f"search in {count:,} records, warm, us, p50",
        {
            "value": round(ordered[len(ordered) // 2] / 1_000, 2),
            "p99": round(ordered[len(ordered) * 99 // 100] / 1_000, 2),
            "files": files,
        },
        at_most=SEARCH_US_MAX[count],
    )


def rows_of(dice: random.Random, start: int, count: int, keys: int) -> Rows:
    made: list[AppliedRow] = [
        (b"user.%010d" % dice.randrange(keys), start + n, 1, VALUE, None, None)
        for n in range(count)
    ]
    return Rows(made, start + count, 0)


def fill(file: TableFile, keys: int) -> None:
    """Each key once."""
    order = list(range(keys))
    random.Random(2).shuffle(order)
    for at in range(0, keys, 10_000):
        some = order[at : at + 10_000]
        file.apply(
            Rows(
                [(b"user.%010d" % k, at + n, 1, VALUE, None, None) for n, k in enumerate(some)],
                at + len(some),
                0,
            ),
            1,
        )


def send(sock: socket.socket, rows: Iterable[Row]) -> None:
    parts = []
    for each in rows:
        value = each.value or b""
        parts.append(
            b"%c%d %d %d\r\n" % (each.value is None, each.version, len(each.key), len(value))
        )
        parts += each.key, value
    sock.sendall(b"".join(parts))


@contextmanager
def sink() -> Iterator[socket.socket]:
    """A socket whose other end a child reads."""
    ours, other = socket.socketpair()

    def drain() -> None:
        ours.close()
        while other.recv(1 << 20):
            pass

    pid = in_child(drain)
    other.close()
    try:
        yield ours
    finally:
        ours.close()
        reap(pid)


def measure_catch_up(
    directory: Path, rounds: int, count: int, *, of_keys: int, keys: int = TABLE_KEYS
) -> dict[str, Any]:
    """Of a table with so many keys, of which the first `keys` change."""
    directory = directory / f"of-{of_keys}"
    directory.mkdir()
    oplog = Oplog(RealFiles(), str(directory / "0.oplog"), table=7, bytes_max=64 << 20)
    file = TableFile(str(directory / "0.db"), "bench", oplog)
    fill(file, of_keys)
    dice, since = random.Random(3), file.position.offset
    while file.position.offset < since + count:
        file.apply(rows_of(dice, file.position.offset, GROUP, keys), 1)
    caught_up, plain = list[float](), list[float]()
    sent = list[bytes]()
    with sink() as sock:  # one for all: what is first after a fork pays for the pages it writes to
        for _ in range(rounds):
            file._changes.forget()
            began = time.perf_counter()
            position, sent = since, []
            while True:
                page = file.changes(position, None, Bounds(PAGE_ROWS, 1 << 30, 0))
                assert not page.is_full
                if not page.rows:
                    break
                send(sock, page.rows)
                sent += [each.key for each in page.rows]
                position = page.position
            caught_up.append(time.perf_counter() - began)
            began = time.perf_counter()
            for at in range(0, len(sent), PAGE_ROWS):
                send(sock, file.get(sent[at : at + PAGE_ROWS]).values())
            plain.append(time.perf_counter() - began)
    file.close()
    assert len(set(sent)) == len(sent) > 0.99 * keys, "each key is sent once"
    figure = (
        f"catch-up after {count:,} operations on {keys:,} of {of_keys:,} keys, over sending them"
    )
    return row(figure, {**median_ratio(caught_up, plain), "sent": len(sent)}, at_most=CATCH_UP_MAX)


@contextmanager
def upsert(*, plain: bool) -> Iterator[None]:
    """Write rows with a statement that does not note the ids of rows."""
    before = table_file._UPSERT
    if plain:
        assert NOTED in before
        table_file._UPSERT = before.replace(NOTED, "excluded.timestamp")  # type: ignore[misc]
    try:
        yield
    finally:
        table_file._UPSERT = before  # type: ignore[misc]


def measure_apply(directory: Path, keys: int, transactions: int) -> dict[str, Any]:
    """CPU of this thread, with an oplog and without, in turn."""
    files = []
    for name in ("with", "without"):
        path = directory / f"apply{keys}{name}"
        path.mkdir()
        oplog = None
        if name == "with":
            oplog = Oplog(RealFiles(), str(path / "0.oplog"), table=7, bytes_max=64 << 20)
        file = TableFile(str(path / "0.db"), "bench", oplog)
        fill(file, keys)
        files.append(file)
    times: tuple[list[float], list[float]] = [], []
    dice = random.Random(4)
    for _ in range(transactions):
        some = rows_of(dice, files[0].position.offset, GROUP, keys)
        for number in dice.sample((0, 1), 2):
            with upsert(plain=number == 1):
                began = time.thread_time()
                files[number].apply(some, 1)
                times[number].append(time.thread_time() - began)
    for file in files:
        file.close()
    ratio = sum(times[0]) / sum(times[1])
    medians = [round(1e6 * statistics.median(each) / GROUP, 2) for each in times]
    measured = {"ratio": round(ratio, 3), "us_per_row": medians}
    return row(
        f"CPU of apply with an oplog over without, {keys:,} keys", measured, at_most=APPLY_MAX
    )


def run(*, quick: bool = False) -> None:
    rounds = 3 if quick else ROUNDS
    with work_directory() as directory:
        rows = measure_writes(directory, rounds, WRITES // (8 if quick else 1))
        rows.append(measure_search(directory, 1_000_000))
        if not quick:
            rows.append(measure_search(directory, 10_000_000))
        count = TABLE_OPERATIONS // (10 if quick else 1)
        rows += [measure_catch_up(directory, rounds, count, of_keys=n) for n in TABLES_KEYS]
        for keys in (10_000, 100_000 if quick else 1_000_000):
            rows.append(measure_apply(directory, keys, 50 if quick else 200))
    report("table_oplog", rows)
