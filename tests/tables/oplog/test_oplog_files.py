"""The files of an oplog: rotation, search over files, crashes at each operation, damage."""

from __future__ import annotations

import errno
from array import array
from random import Random

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import SHORT, SimFiles
from bascule.tables.oplog import oplog_file
from bascule.tables.oplog.file_header import Mark, first_of_name
from bascule.tables.oplog.oplog import Oplog

DIRECTORY = "/t/0.oplog"
MANY = 1_000_000
"""More keys than there are."""
BYTES_MAX = 8 * 6_400 * 2
"""Eight files of two blocks."""


class OplogModel:
    """An oplog, and what it should have: all operations since `start`."""

    def __init__(self, seed: int = 1) -> None:
        self.files = SimFiles(RealRandom(seed))
        self.dice = Random(seed)
        self.oplog = make_oplog(self.files)
        self.made: list[tuple[int, int]] = []
        """Id and key."""
        self.position = 0
        self.mark = self.oplog.begin(1)
        self.marks: list[tuple[int, Mark]] = [(0, self.mark)]

    def draw(self, count: int) -> array[int]:
        some = array("q")
        for _ in range(count):
            self.position += self.dice.choice((1, 1, 4))
            key = self.dice.randint(1, 40)
            some.extend((self.position, key, 1))
            self.made.append((self.position, key))
        return some

    def append(self, count: int) -> None:
        self.mark = self.oplog.append(self.draw(count))
        self.marks.append((self.position, self.mark))

    def expect(self, since: int) -> None:
        """The oplog has all since then, or says that it is older."""
        found = self.oplog.last_operations(since, self.mark, keys_max=MANY)
        if since < self.oplog.first - 1:
            assert found is None
            return
        assert found is not None
        last = {key: id for id, key in self.made if since < id <= self.position}
        expected = sorted(((id, key) for key, id in last.items()), reverse=True)
        assert pairs(found.found, found.keys) == expected

    def expect_all(self) -> None:
        for since in {0, self.oplog.first - 1, self.position, self.position + 1} | {
            self.dice.randint(0, self.position + 1) for _ in range(5)
        }:
            self.expect(since)


def pairs(found: array[int], keys: int) -> list[tuple[int, int]]:
    return [(found[2 * n], found[2 * n + 1]) for n in range(keys)]


def make_oplog(files: SimFiles, table: int = 7) -> Oplog:
    return Oplog(files, DIRECTORY, table=table, bytes_max=BYTES_MAX)


def test_files_are_rotated_and_the_oldest_removed() -> None:
    model = OplogModel()
    for _ in range(80):
        model.append(100)
        assert model.oplog.size <= BYTES_MAX
        model.expect_all()
    names = model.files.list_dir(DIRECTORY)
    assert 6 <= len(names) <= 8
    assert first_of_name(names[0]) == model.oplog.first > 1
    assert first_of_name(names[-1]) == model.mark.first


def test_search_over_files() -> None:
    model = OplogModel()
    for _ in range(40):
        model.append(37)
    ids = [id for id, _ in model.made if id >= model.oplog.first]
    for since in [*range(model.oplog.first - 1, model.oplog.first + 20), *ids[::50], *ids[-3:]]:
        place = model.oplog.find(since, model.mark)
        above = [id for id in ids if id > since]
        if not above:
            assert place is None
            continue
        assert place is not None
        name = f"{DIRECTORY}/{place.first:020d}.oplog"
        at = 48 + 25 * place.slot
        assert int.from_bytes(model.files.read_bytes(name)[at : at + 8], "little") == above[0]


def test_a_reader_goes_by_its_mark() -> None:
    model = OplogModel()
    model.append(700)
    position, mark = model.position, model.mark
    for _ in range(10):
        model.append(90)
    found = model.oplog.last_operations(0, mark, keys_max=MANY)
    assert found is not None
    assert max(found.found) <= position
    assert found.keys == 40


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_an_oplog_is_whole_or_says_so_after_a_crash(seed: int, loses_power: bool) -> None:
    """The database has any of the last transactions, whatever the oplog has."""
    model = OplogModel(seed)
    for _ in range(12):
        for _ in range(model.dice.randint(1, 12)):
            model.append(model.dice.choice((0, 1, 5, 100, 300)))
        if loses_power:
            model.files.crash()
        number = model.dice.choice((-1, -1, -2, -3, -4))
        position, mark = model.marks[max(number, -len(model.marks))]
        if not loses_power and model.dice.random() < 0.3:
            model.oplog.append(model.draw(50))  # it was killed before the commit
        model.made = [each for each in model.made if each[0] <= position]
        model.position = position
        model.oplog = make_oplog(model.files)
        missing = model.oplog.open(mark, position)
        assert loses_power or missing is None, "a kill loses nothing"
        if missing is not None:
            assert missing >= model.oplog.first - 1
            last = {key: id for id, key in model.made if id > missing}
            some = sorted((id, key) for key, id in last.items())
            for at in range(0, len(some), 7):
                rest = array("q", [n for id, key in some[at : at + 7] for n in (id, key, 2)])
                model.oplog.append(rest)
        model.mark = model.oplog.mark
        model.marks = [(position, model.mark)]
        if not loses_power:
            assert model.mark == mark
        model.expect_all()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT])
def test_any_operation_may_fail(error: int) -> None:
    """After a failure the oplog is opened as of the last transaction, and goes on."""
    failed = 0
    for number in range(1, 400):
        model = OplogModel(number)
        model.append(500)
        model.files.fail(number, error)
        position, mark, made = model.position, model.mark, list(model.made)
        try:
            for _ in range(4):
                model.append(300)
                position, mark, made = model.position, model.mark, list(model.made)
        except OSError:
            failed += 1
            model.files.forget_faults()
            missing = model.oplog.open(mark, position)
            model.made, model.position = made, position
            assert missing is None
            model.mark = model.oplog.mark
        if model.files.fault_pending():
            break
        model.append(20)
        model.expect_all()
    else:
        pytest.fail("never without a failure")
    assert failed > 5


def damage(model: OplogModel, file: int, at: int) -> None:
    name = model.files.list_dir(DIRECTORY)[file]
    path = f"{DIRECTORY}/{name}"
    byte = model.files.read_bytes(path)[at]
    model.files.open(path).write_at(at, bytes([byte ^ 0x10]))


@pytest.mark.parametrize("file", [0, 1, -1])
@pytest.mark.parametrize("at", [3, 20, 47, 48, 55, 60, 65, 72, 48 + 25 * 255 + 9, 48 + 25 * 256])
def test_damage_is_found_when_it_is_read(file: int, at: int) -> None:
    model = OplogModel()
    for _ in range(6):
        model.append(260)
    damage(model, file, at)
    model.oplog = make_oplog(model.files)
    missing = model.oplog.open(model.mark, model.position)
    if file == -1:
        assert missing is not None or model.oplog.first == model.position + 1
        return
    assert missing is None
    if at < 48:
        assert model.oplog.first > 1, "a file without its header is none"
        model.expect_all()
        return
    with pytest.raises(CorruptData):
        model.oplog.last_operations(0, model.mark, keys_max=MANY)
    model.expect(model.mark.first)


@pytest.mark.parametrize("blocks", [1, 2, 64])
def test_nothing_older_is_read_once_all_keys_are_found(
    monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr(oplog_file, "READ_BLOCKS", blocks)
    model = OplogModel()
    for _ in range(6):
        model.append(260)
    expected = model.oplog.last_operations(0, model.mark, keys_max=MANY)
    assert expected is not None
    assert expected.keys == 40
    for keys_max in (40, 41, 1_000):
        assert model.oplog.last_operations(0, model.mark, keys_max=keys_max) == expected
    damage(model, 0, 48 + 25 * 100 + 8)
    assert model.oplog.last_operations(0, model.mark, keys_max=40) == expected
    with pytest.raises(CorruptData):
        model.oplog.last_operations(0, model.mark, keys_max=41)


def test_damage_of_a_file_that_is_open_is_found() -> None:
    model = OplogModel()
    model.append(700)
    damage(model, 0, 48 + 25 * 300 + 8)
    with pytest.raises(CorruptData, match="corrupt"):
        model.oplog.last_operations(0, model.mark, keys_max=MANY)
    with pytest.raises(CorruptData):
        model.oplog.find(model.made[299][0], model.mark)


def test_a_file_that_is_cut_short_is_found() -> None:
    model = OplogModel()
    for _ in range(6):
        model.append(260)
    name = model.files.list_dir(DIRECTORY)[1]
    model.files.open(f"{DIRECTORY}/{name}").truncate(48 + 25 * 256)
    with pytest.raises(CorruptData):
        model.oplog.last_operations(0, model.mark, keys_max=MANY)
    model.oplog = make_oplog(model.files)
    assert model.oplog.open(model.mark, model.position) is None
    assert model.oplog.first > first_of_name(name)  # type: ignore[operator]
    model.expect_all()


def test_a_file_that_is_gone_is_found() -> None:
    model = OplogModel()
    for _ in range(6):
        model.append(260)
    names = model.files.list_dir(DIRECTORY)
    model.oplog = make_oplog(model.files)
    assert model.oplog.open(model.mark, model.position) is None
    model.files.remove(f"{DIRECTORY}/{names[1]}")
    with pytest.raises(CorruptData, match="expected a file, found none"):
        model.oplog.last_operations(0, model.mark, keys_max=MANY)


def test_an_oplog_of_another_table_or_begun_anew_is_not_taken() -> None:
    model = OplogModel()
    model.append(300)
    other = make_oplog(model.files, table=8)
    assert other.open(model.mark, model.position) is None
    assert other.first == model.position + 1
    assert other.last_operations(model.position - 1, other.mark, keys_max=MANY) is None
    assert other.last_operations(model.position, model.mark, keys_max=MANY) is None, (
        "the mark of another"
    )
    assert len(model.files.list_dir(DIRECTORY)) == 1


def test_a_new_file_of_a_transaction_that_did_not_commit_is_removed() -> None:
    model = OplogModel()
    model.append(600)
    position, mark, made = model.position, model.mark, list(model.made)
    model.append(10)
    assert len(model.files.list_dir(DIRECTORY)) == 2
    model.oplog = make_oplog(model.files)
    assert model.oplog.open(mark, position) is None
    assert len(model.files.list_dir(DIRECTORY)) == 1
    model.position, model.mark, model.made = position, mark, made
    model.append(10)
    model.expect_all()


def test_the_order_of_writes_and_syncs() -> None:
    model = OplogModel()
    model.append(510)
    began = len(model.files.operations)
    model.append(2)
    first = model.mark.first
    assert model.files.operations[began:] == [
        "sync 00000000000000000001.oplog",
        f"create {first:020d}.oplog",
        f"truncate {first:020d}.oplog to 0",
        f"append {first:020d}.oplog 48 at 0",
        f"sync {first:020d}.oplog",
        "sync-dir 0.oplog",
        f"append {first:020d}.oplog 50 at 48",
    ]


def test_damage_behind_the_last_check_is_found_by_the_mark() -> None:
    """A key id is as good as any other by itself."""
    model = OplogModel()
    model.append(300)
    damage(model, 0, 48 + 25 * 280 + 8)
    with pytest.raises(CorruptData, match="crc32c"):
        model.oplog.last_operations(0, model.mark, keys_max=MANY)
    with pytest.raises(CorruptData, match="crc32c"):
        model.oplog.find(model.made[270][0], model.mark)
    model.oplog = make_oplog(model.files)
    missing = model.oplog.open(model.mark, model.position)
    assert missing == model.made[254][0]
    assert model.oplog.mark.slots == 256


def test_what_an_earlier_process_has_written_is_synced_before_the_next_file() -> None:
    model = OplogModel()
    model.append(510)
    model.oplog = make_oplog(model.files)
    assert model.oplog.open(model.mark, model.position) is None
    began = len(model.files.operations)
    model.append(2)
    assert "sync 00000000000000000001.oplog" in model.files.operations[began:]
