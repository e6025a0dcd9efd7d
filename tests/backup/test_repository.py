"""Places of backups, and the manifests in them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from errno import ENOLCK, ENOSPC, EOPNOTSUPP
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from bascule.backup import places
from bascule.backup.manifest import (
    FORMAT,
    NOT_THERE,
    BackedUpFile,
    BackedUpPartition,
    Manifest,
    backed_up,
    decode_manifest,
    encode_manifest,
    manifest_name,
)
from bascule.backup.places import CHUNK_BYTES, LocalPlace, Place, RemotePlace, open_place
from bascule.backup.repository import Repository
from bascule.errors import BackupPlaceInUse, Broken, ConfigError, CorruptData, UnsupportedFormat
from bascule.host.api import Files
from bascule.model import StreamConfig, StreamDefinition
from support.s3_server import BUCKET, running_s3

PLACES: dict[str, Callable[[Path], Place]] = {
    "local": lambda path: LocalPlace(str(path)),
    "arrow": lambda path: RemotePlace(f"file://{path}"),
}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as options:
        yield options


@pytest.fixture(params=[*PLACES, pytest.param("s3", marks=pytest.mark.tier3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        options = request.getfixturevalue("s3")
        return open_place(f"s3://{BUCKET}/{tmp_path.name}/place{options}")
    return PLACES[request.param](tmp_path / "place")


def manifest(backup: str = "20260101T000000Z", *names: str) -> Manifest:
    files = tuple(
        BackedUpFile(name=name, first_offset=n, end_offset=n + 1, bytes=10, sha256="ab")
        for n, name in enumerate(names)
    )
    stream = StreamDefinition("orders", b"i" * 16, 7, StreamConfig("orders.>"), paused=True)
    partition = BackedUpPartition(
        partition=0, start_offset=0, end_offset=len(names), leader_epoch=3, files=files
    )
    return Manifest(
        id=backup, at_ms=1, cluster_id="c", source="here",
        streams=(backed_up(stream, (partition,)),),
    )  # fmt: skip


def test_files_are_written_read_listed_and_removed(place: Place) -> None:
    assert place.names("streams") == []
    place.write("streams/b/1", b"one")
    place.write("streams/a/2", b"two")
    place.write("streams/b/1", b"another")
    place.write("manifests/x", b"")
    assert place.names("streams") == ["streams/a/2", "streams/b/1"]
    assert place.read("streams/b/1") == b"another"
    place.remove("streams/b/1")
    place.remove("streams/b/1")
    assert place.names("streams") == ["streams/a/2"]
    with pytest.raises(FileNotFoundError):
        place.read("streams/b/1")


def test_a_large_file_is_written_and_read_in_pieces(place: Place) -> None:
    pieces = [bytes([number]) * (CHUNK_BYTES // 2) for number in range(5)]
    place.write_chunks("streams/a/1", iter(pieces))
    assert place.names("streams") == ["streams/a/1"]
    found = list(place.read_chunks("streams/a/1"))
    assert max(map(len, found)) <= CHUNK_BYTES
    assert b"".join(found) == b"".join(pieces)
    place.write_chunks("streams/a/0", iter(()))
    assert list(place.read_chunks("streams/a/0")) == []
    assert place.names("streams") == ["streams/a/0", "streams/a/1"]
    with pytest.raises(FileNotFoundError):
        next(place.read_chunks("streams/a/2"))


def test_a_file_whose_content_ends_early_is_not_there(place: Place) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * CHUNK_BYTES
        raise Broken("the node is gone")

    with pytest.raises(Broken):
        place.write_chunks("streams/a/1", chunks())
    assert place.names("streams") == []


def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    """A full disk says only its number."""
    place = LocalPlace(str(tmp_path))

    def chunks() -> Iterator[bytes]:
        yield b"x"
        raise OSError(ENOSPC, "no space left on device")

    with pytest.raises(OSError, match="no space") as caught:
        place.write_chunks("streams/a/1", chunks())
    assert caught.value.filename == f"{tmp_path}/streams/a/1"


def test_a_repository_keeps_the_newest(place: Place) -> None:
    repository = Repository(place)
    assert repository.latest() is None
    for name in ("streams/a", "streams/b", "streams/c", "streams/orphan"):
        place.write(name, b"x" * 10)
    made = [
        manifest("20260101T000000Z", "streams/a", "streams/b"),
        manifest("20260102T000000Z", "streams/b"),
        manifest("20260103T000000Z", "streams/b", "streams/c"),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.ids() == [each.id for each in made]
    assert repository.latest() == made[-1]
    assert repository.load(made[0].id) == made[0]
    assert repository.unnamed(repository.load_all()[0]) == ["streams/orphan"]
    assert repository.forget(5) == (0, 1)
    assert repository.forget(2) == (1, 1)
    assert place.names("streams") == ["streams/b", "streams/c"]
    assert repository.ids() == [each.id for each in made[1:]]
    with pytest.raises(ConfigError, match=r"no backup '20260101T000000Z'; the last ones: 2026"):
        repository.load("20260101T000000Z")


def test_the_newest_complete_backup_is_kept(place: Place) -> None:
    """Else `--keep 1` removes what is good when a node has lost something."""
    repository = Repository(place)
    made = [manifest(f"2026010{day}T000000Z", f"streams/{day}") for day in range(1, 6)]
    for day, each in enumerate(made, 1):
        place.write(f"streams/{day}", b"x" * 10)
        repository.add(each if day < 4 else failing(each), known=repository.ids())
    assert repository.forget(1) == (3, 3)
    assert repository.ids() == [made[2].id, made[4].id]
    assert place.names("streams") == ["streams/3", "streams/5"]
    repository.add(manifest("20260106T000000Z", "streams/5"), known=repository.ids())
    assert repository.forget(1) == (2, 1)
    assert place.names("streams") == ["streams/5"]


def failing(complete: Manifest) -> Manifest:
    (stream,) = complete.streams
    partition = replace(stream.partitions[0], failure="no leader")
    return replace(complete, streams=(replace(stream, partitions=(partition,)),))


def test_files_of_interrupted_backups_are_listed_and_removed(place: Place) -> None:
    repository = Repository(place)
    files = [
        "streams/a/0/00000000000000000000-00000000000000000001-0123456789abcdef.batches",
        "streams/a/0/00000000000000000001-00000000000000000002-0123456789abcdef.batches.new",
        f"streams/a/0/{1:020d}-{'0f' * 16}-20260101T000000Z-2.payload.new",
        f"streams/a/0/{1:020d}-{'0f' * 16}-20260103T000000Z.payload",
    ]
    for name in files:
        place.write(name, b"x")
    cut = "manifests/20260103T000000Z.json.new"
    place.write(cut, b"a manifest")
    place.write("manifests/readme.json", b"of somebody else")
    repository.add(manifest("20260102T000000Z"), known=repository.ids())
    repository.add(manifest("20260104T000000Z", files[0]), known=repository.ids())
    assert repository.unnamed(repository.load_all()[0]) == [cut, *files[1:]]
    assert repository.forget(2) == (0, 4)
    assert place.names("streams") == files[:1]


def test_nothing_is_removed_where_a_manifest_cannot_be_read(place: Place) -> None:
    repository = Repository(place)
    for day in ("1", "2", "3"):
        place.write(f"streams/{day}", b"x")
        repository.add(manifest(f"2026010{day}T000000Z", f"streams/{day}"), known=repository.ids())
    name = manifest_name("20260102T000000Z")
    place.write(name, place.read(name)[:-9])
    found, unreadable = repository.load_all()
    assert [each.id for each in found] == ["20260101T000000Z", "20260103T000000Z"]
    assert [each.id for each in unreadable] == ["20260102T000000Z"]
    assert name in str(unreadable[0].error)
    with pytest.raises(CorruptData):
        repository.forget(1)
    assert place.names("streams") == ["streams/1", "streams/2", "streams/3"]
    assert len(repository.ids()) == 3


def of_streams(backup: str, *, of_all: bool = False, **streams: str) -> Manifest:
    """A backup of streams with one partition each, and why that is not complete."""
    return Manifest(
        id=backup, at_ms=1, cluster_id="c", source="here", names_all_streams=of_all,
        streams=tuple(
            backed_up(
                StreamDefinition(name, name.encode().ljust(16), 7, StreamConfig(f"{name}.>")),
                (BackedUpPartition(partition=0, start_offset=0, end_offset=1, failure=failure),),
            )
            for name, failure in streams.items()
        ),
    )  # fmt: skip


def test_what_no_newer_backup_has_complete_is_kept(place: Place) -> None:
    """A backup of one stream is complete, and has nothing of the others."""
    repository = Repository(place)
    made = [
        of_streams("20260101T000000Z", a="", b="", gone=""),
        of_streams("20260102T000000Z", a="", b="", of_all=True),
        of_streams("20260103T000000Z", a="", b="no leader"),
        of_streams("20260104T000000Z", a=""),
        of_streams("20260105T000000Z", a="", b="no leader"),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.forget(2) == (2, 0)
    assert repository.ids() == [made[1].id, made[3].id, made[4].id]
    newest = of_streams("20260106T000000Z", a="no leader", b="no leader")
    repository.add(newest, known=repository.ids())
    assert repository.forget(1) == (2, 0)
    assert repository.ids() == [made[1].id, newest.id]


def test_what_is_complete_in_no_single_older_backup_is_kept(place: Place) -> None:
    repository = Repository(place)
    made = [
        of_streams("20260101T000000Z", a="", b="no leader"),
        of_streams("20260102T000000Z", a="no leader", b=""),
        of_streams("20260103T000000Z", a="no leader", b="no leader"),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.forget(1) == (0, 0)


def test_a_stream_that_newer_backups_leave_out_is_kept_until_one_proves_its_deletion(
    place: Place,
) -> None:
    repository = Repository(place)
    made = [
        of_streams("20260101T000000Z", a="", b="", of_all=True),
        of_streams("20260102T000000Z", a=""),
        of_streams("20260103T000000Z", a=""),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.forget(1) == (1, 0)
    assert repository.ids() == [made[0].id, made[2].id]
    last = of_streams("20260104T000000Z", a="", of_all=True)
    repository.add(last, known=repository.ids())
    assert repository.forget(1) == (2, 0)
    assert repository.ids() == [last.id]


def test_a_backup_proves_nothing_of_streams_that_are_newer_than_it(place: Place) -> None:
    repository = Repository(place)
    made = [
        of_streams("20260101T000000Z", a="", of_all=True),
        of_streams("20260102T000000Z", a="", b=""),
        of_streams("20260103T000000Z", a=""),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.forget(1) == (1, 0)
    assert repository.ids() == [made[1].id, made[2].id]


def test_a_manifest_of_an_earlier_release_proves_no_deletion() -> None:
    made = of_streams("20260101T000000Z", a="", of_all=True)
    earlier = msgspec.to_builtins(made)
    assert earlier.pop("names_all_streams")
    content = msgspec.json.encode(earlier)
    document = {"format": FORMAT, "version": 2, "crc32c": f"{crc32c(content):08x}"}
    data = msgspec.json.encode({**document, "backup": earlier})
    assert decode_manifest(data, "m") == replace(made, names_all_streams=False)


def of_partitions(backup: str, **partitions: str) -> Manifest:
    """A backup of a stream with three partitions, of which it has these: p0="" is one."""
    config = StreamConfig("orders.>", partitions=3)
    parts = tuple(
        BackedUpPartition(
            partition=int(name[1:]), start_offset=0, end_offset=1, failure=failure,
            files=(
                BackedUpFile(name=f"streams/{backup}/{name}", first_offset=0, end_offset=1,
                             bytes=1, sha256="ab"),
            ),
        )
        for name, failure in partitions.items()
    )  # fmt: skip
    return Manifest(
        id=backup, at_ms=1, cluster_id="c", source="here", names_all_streams=True,
        streams=(backed_up(StreamDefinition("orders", b"i" * 16, 7, config), parts),),
    )  # fmt: skip


def test_partitions_that_a_backup_lacks_are_not_complete_and_stay_in_older_ones(
    place: Place,
) -> None:
    repository = Repository(place)
    made = [
        of_partitions("20260101T000000Z", p0="", p1="", p2=""),
        of_partitions("20260102T000000Z", p0=""),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert made[0].is_complete
    assert not made[1].is_complete
    assert made[1].failures() == [("orders", 1, NOT_THERE), ("orders", 2, NOT_THERE)]
    assert repository.forget(1) == (0, 0)


def test_what_is_complete_in_no_backup_stays_where_there_is_some_of_it(place: Place) -> None:
    repository = Repository(place)
    made = [
        of_partitions("20260101T000000Z", p0="", p1="damaged"),
        of_partitions("20260102T000000Z", p0="", p1="damaged"),
        of_partitions("20260103T000000Z", p0=""),
    ]
    for each in made:
        repository.add(each, known=repository.ids())
    assert repository.forget(1)[0] == 1
    assert repository.ids() == [made[1].id, made[2].id]


def test_a_backup_does_not_remove_itself(place: Place) -> None:
    """Without locks another one may have been added since."""
    repository = Repository(place)
    for day in (1, 2, 3):
        repository.add(manifest(f"2026010{day}T000000Z"), known=repository.ids())
    assert repository.forget(1, own="20260102T000000Z") == (1, 0)
    assert repository.ids() == ["20260102T000000Z", "20260103T000000Z"]


def test_only_the_newest_manifest_has_to_be_readable_to_go_on(place: Place) -> None:
    repository = Repository(place)
    first, damaged, newest = (
        of_streams(f"2026010{day}T000000Z", **{name: ""})
        for day, name in ((1, "a"), (2, "b"), (3, "c"))
    )
    for each in (first, damaged, newest):
        repository.add(each, known=repository.ids())
    place.write(manifest_name(damaged.id), b"\xff")
    streams = [each.streams[0].decoded() for each in (first, damaged, newest)]
    latest = repository.latest_of(streams)
    assert latest is not None
    assert {each.decoded().name for each in latest.streams} == {"a", "c"}
    left_out, unreadable = repository.left_out(newest)
    assert left_out == [("a", first.id)]
    assert [each.id for each in unreadable] == [damaged.id]
    place.write(manifest_name(newest.id), b"")
    with pytest.raises(CorruptData):
        repository.latest_of(streams)
    latest = repository.latest_of(streams, passes_damage=True)
    assert latest is not None
    assert [each.decoded().name for each in latest.streams] == ["a"]


def test_a_manifest_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifests/20260101T000000Z.json").mkdir(parents=True)
    place = LocalPlace(str(tmp_path))
    with pytest.raises(CorruptData, match=r"20260101T000000Z\.json is corrupt"):
        Repository(place).load("20260101T000000Z")


@pytest.mark.parametrize("data", [b"\xff\xfe", b'{"format": "\xff"}', b'"\xe2\x28"'])
def test_a_manifest_that_is_no_text_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_manifest(data, "m")


def test_one_backup_at_a_time_is_written_to_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CLAIM_RENEWAL_SECONDS", 0.01)
    first, second = (RemotePlace(f"file://{tmp_path}") for _ in range(2))
    with first.held():
        (claim,) = first.names("backing-up")
        first.remove(claim)
        while not first.names("backing-up"):  # it is renewed
            pass
        with pytest.raises(BackupPlaceInUse, match=f"process {os.getpid()} of .* 10 minutes"):
            second.held().__enter__()
        assert first.names("backing-up") == [claim]
    assert first.names("backing-up") == []
    first.write("backing-up/of-a-killed-one", b"process 1 of x")
    os.utime(tmp_path / "backing-up/of-a-killed-one", (0, 0))
    with second.held():
        assert "backing-up/of-a-killed-one" not in first.names("backing-up")


def test_of_two_backups_in_a_bucket_that_end_at_once_one_at_most_counts(tmp_path: Path) -> None:
    """Neither has seen the other one when it looked; the second one sees it afterwards."""
    first, second = (Repository(RemotePlace(f"file://{tmp_path}")) for _ in range(2))
    write = second.place.write

    def overtaken(name: str, data: bytes) -> None:
        second.place.write = write  # type: ignore[method-assign]
        first.add(manifest("20260102T000000Z"), known=())
        write(name, data)

    second.place.write = overtaken  # type: ignore[method-assign]
    with pytest.raises(BackupPlaceInUse):
        second.add(manifest("20260101T000000Z", "streams/gone"), known=())
    assert first.ids() == ["20260102T000000Z"]


def test_a_data_directory_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{}")
    for name in ("", "/streams", "/streams/orders/0/backups"):
        with pytest.raises(ConfigError, match="in the data directory of a node"):
            LocalPlace(f"{tmp_path}{name}").held().__enter__()
    with LocalPlace(f"{tmp_path}/backups").held():
        pass


def test_a_place_that_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This may run as root, whom no mode keeps out."""
    place = LocalPlace(str(tmp_path))
    place.write("manifests/20260101T000000Z.json", b"{}")

    def refuse(path: object) -> NoReturn:
        raise PermissionError(13, "permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        Repository(place).ids()


def test_a_write_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = LocalPlace(str(tmp_path))

    def replace_file(files: Files, path: str, data: bytes) -> None:
        Path(f"{path}.new").write_bytes(data[:1])
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(places, "replace_file", replace_file)
    with pytest.raises(OSError, match=r"streams/a"):
        place.write("streams/a", b"xx")
    assert place.names("streams") == []


@pytest.mark.parametrize("address", ["file://elsewhere/tmp/x", "file:relative", "s3://"])
def test_an_address_that_is_no_place(address: str) -> None:
    with pytest.raises(ConfigError):
        open_place(address)


def test_a_url_of_this_machine(tmp_path: Path) -> None:
    for start in ("file://", "file://localhost"):
        assert open_place(f"{start}{tmp_path}/a%20b").address == f"{tmp_path}/a b"


def test_a_backup_that_another_one_has_overtaken_does_not_count(place: Place) -> None:
    """It may go on from files that the other one has removed with `--keep`."""
    repository = Repository(place)
    repository.add(manifest("20260101T000000Z"), known=())
    known = repository.ids()
    repository.add(manifest("20260102T000000Z"), known=known)
    for late in ("20260101T000001Z", "20260102T000000Z", "20260103T000000Z"):
        with pytest.raises(BackupPlaceInUse, match="in use by backup 20260102T000000Z, which"):
            repository.add(manifest(late, "streams/a/0/1.batches"), known=known)
    assert repository.ids() == ["20260101T000000Z", "20260102T000000Z"]
    assert not repository.load("20260102T000000Z").names()


def test_one_backup_at_a_time_is_written_to_a_directory(tmp_path: Path) -> None:
    first, second = LocalPlace(str(tmp_path / "place")), LocalPlace(str(tmp_path / "place"))
    with first.held():
        with pytest.raises(BackupPlaceInUse, match=f"by process {os.getpid()}: one backup"):
            second.held().__enter__()
        with LocalPlace(str(tmp_path / "other")).held():
            pass
    with second.held():
        pass
    assert Repository(second).ids() == []


def test_a_file_system_without_locks_takes_backups(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(*refusals.pop())

    refusals = [(each, os.strerror(each)) for each in (ENOLCK, EOPNOTSUPP)]
    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with place.held():
            assert Repository(place).ids() == []


def test_an_empty_place_says_what_to_do(place: Place) -> None:
    with pytest.raises(ConfigError, match="take one with"):
        Repository(place).chosen("")


@pytest.mark.tier3
def test_a_large_file_comes_back_from_s3_in_one_piece(s3: str) -> None:
    place = open_place(f"s3://{BUCKET}/large{s3}")
    data = random.Random(1).randbytes(24 << 20)  # Arrow uploads it in several parts
    place.write("streams/large", data)
    assert place.read("streams/large") == data
    assert place.address == f"s3://{BUCKET}/large"


@pytest.mark.tier3
def test_a_bucket_that_does_not_exist_takes_no_backup(s3: str) -> None:
    place = open_place(f"s3://missing/here{s3}")
    with pytest.raises(OSError, match="missing"):
        place.write("streams/a", b"x")
    with pytest.raises(ConfigError, match="there is no bucket 'missing'"):
        Repository(place).ids()


@pytest.mark.parametrize("address", ["", "nowhere://x/y"])
def test_unknown_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        open_place(address)


def test_every_changed_byte_of_a_manifest_is_found() -> None:
    data = encode_manifest(manifest("20260101T000000Z", "streams/a"))
    assert decode_manifest(data, "m") == manifest("20260101T000000Z", "streams/a")
    found = 0
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            decoded = decode_manifest(damaged, "m")
        except (CorruptData, UnsupportedFormat):
            found += 1
        else:
            # White space, or a name beside the content.
            assert decoded == manifest("20260101T000000Z", "streams/a")
    assert found > len(data) * 0.6
    for end in range(len(data) - 1):
        with pytest.raises(CorruptData):
            decode_manifest(data[:end], "m")


def test_a_newer_format_is_named() -> None:
    data = encode_manifest(manifest()).replace(b'"version": 2', b'"version": 3')
    with pytest.raises(UnsupportedFormat):
        decode_manifest(data, manifest_name("x"))
