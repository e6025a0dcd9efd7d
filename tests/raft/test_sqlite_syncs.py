"""What the SQLite store really syncs: counted in the process, below SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.raft.membership import Members
from bascule.raft.messages import Entry
from bascule.raft_driver.sqlite_store import SqliteDatabase

pytestmark = pytest.mark.tier2

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
static long syncs = 0;
long syncs_made(void) { return syncs; }
int fsync(int fd) { syncs++; return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { syncs++; return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""

PROGRAM = """
import ctypes, sys
from bascule.raft.membership import Members
from bascule.raft.messages import Entry
from bascule.raft_driver.sqlite_store import SqliteDatabase

counter = ctypes.CDLL(None)
counter.syncs_made.restype = ctypes.c_long
database = SqliteDatabase.open(sys.argv[1], node_id=1)
store = database.store(1)
store.load()
store.bootstrap(Members.of(1))

def syncs_of(call):
    before = counter.syncs_made()
    call()
    return counter.syncs_made() - before

def append(index):
    store.persist_entries([Entry(index, 1, 0, b"x")])
    store.flush()

def vote(term):
    store.buffer_term(term, 1)
    store.flush()

def buffer():
    store.persist_entries([Entry(21, 1, 0, b"x")])

appends = [syncs_of(lambda index=index: append(index)) for index in range(1, 21)]
votes = [syncs_of(lambda term=term: vote(term)) for term in range(1, 11)]
print(appends, votes, syncs_of(lambda: store.persist_term(20, 1)), syncs_of(buffer))
database.close()
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts the syncs of the process that preloads it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("counter")
    source, library = directory / "counter.c", directory / "counter.so"
    source.write_text(COUNTER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_each_flush_is_one_sync(counter: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "raft.sqlite")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        env={"LD_PRELOAD": str(counter), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    ones = [1] * 20
    assert done.stdout.split("\n")[0] == f"{ones} {ones[:10]} 1 0"


def test_the_connection_syncs_every_commit(tmp_path: Path) -> None:
    database = SqliteDatabase.open(str(tmp_path / "raft.sqlite"), node_id=1)
    (found,) = database.connection.execute("PRAGMA synchronous").fetchone()
    assert found == 2, "FULL: the write-ahead log is synced after each transaction"
    database.close()


def test_opening_writes_the_log_into_the_file_before_it_is_used(tmp_path: Path) -> None:
    """After a failed sync the write-ahead log may be in the kernel's cache only. The file alone has
    the entries once the database is open."""
    before, after, alone = (tmp_path / name for name in ("before", "after", "alone"))
    for directory in (before, after, alone):
        directory.mkdir()
    database = SqliteDatabase.open(str(before / "raft.sqlite"), node_id=1)
    store = database.store(1)
    store.load()
    store.bootstrap(Members.of(1))
    store.persist_entries([Entry(index, 1, 0, b"x") for index in range(1, 4)])
    store.flush()
    for file in before.iterdir():  # as a kill leaves them
        shutil.copy(file, after / file.name)
    database.close()
    again = SqliteDatabase.open(str(after / "raft.sqlite"), node_id=1)
    shutil.copy(after / "raft.sqlite", alone / "raft.sqlite")
    again.close()
    file = sqlite3.connect(alone / "raft.sqlite")
    assert file.execute("SELECT first, last FROM runs").fetchall() == [(1, 3)]
    file.close()
