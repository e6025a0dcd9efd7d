"""Checksums of the blocks of payloads, and reads that are compared with them."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from itertools import count

import pytest
from crc32c import crc32c

from bascule.errors import PayloadDamaged, PayloadMissing
from bascule.host.real import RealRandom
from bascule.record.payload_links import Payload, PayloadLink
from bascule.sim.disk import SHORT, SimFiles
from bascule.storage.payloads.block_steps import run_through
from bascule.storage.payloads.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    SumsBuilder,
    decode_sums,
    encode_sums,
)
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.verified_file import build_sums, open_verified, verify_payload
from support.payload_logs import have_whole

ID = "0123456789abcdef" * 2
DATA = random.Random(5).randbytes(2 * BLOCK_BYTES + 999)
PAYLOAD = Payload(ID, len(DATA), crc32c(DATA))
SUMS = f"/p/payloads/{ID}-{PAYLOAD.crc:08x}.sums"
OLDER_SUMS = f"/p/payloads/{ID}.sums"
OTHER_DATA = DATA[::-1]
OTHER = Payload(ID, len(DATA), crc32c(OTHER_DATA))
OTHER_SUMS = f"/p/payloads/{ID}-{OTHER.crc:08x}.sums"
CRCS = [crc32c(DATA[at : at + BLOCK_BYTES]) for at in range(0, len(DATA), BLOCK_BYTES)]


def built(pieces: list[int]) -> BlockSums | None:
    builder, at = SumsBuilder(), 0
    for length in pieces:
        builder.add(crc32c(DATA[at : at + length]), length)
        at += length
    return builder.sums(PAYLOAD)


def test_pieces_make_the_sums_of_blocks() -> None:
    dice = random.Random(1)
    for _ in range(50):
        pieces: list[int] = []
        for block in (BLOCK_BYTES, BLOCK_BYTES, 999):
            left = block
            while left:
                pieces.append(dice.randrange(0, left + 1) if dice.random() < 0.8 else left)
                left -= pieces[-1]
        sums = built(pieces)
        assert sums is not None
        assert list(sums.crcs) == CRCS
    assert built([BLOCK_BYTES - 1, 2, BLOCK_BYTES - 1, 999]) is None, "over the end of a block"
    assert built([BLOCK_BYTES]) is None, "not all"
    assert SumsBuilder(is_known=False).sums(Payload(ID, 0, 0)) is None


def test_the_file_of_sums_has_its_format() -> None:
    data = encode_sums(BlockSums(len(DATA), PAYLOAD.crc, CRCS))
    assert data[:4] == b"BPS1"
    assert data[4:8] == crc32c(data[8:]).to_bytes(4, "big")
    assert data[8:24] == (
        BLOCK_BYTES.to_bytes(4, "big") + PAYLOAD.crc.to_bytes(4, "big")
        + len(DATA).to_bytes(8, "big")
    )  # fmt: skip
    assert data[24:] == b"".join(crc.to_bytes(4, "big") for crc in CRCS)
    found = decode_sums(data)
    assert found is not None
    assert (found.size, found.crc, list(found.crcs)) == (len(DATA), PAYLOAD.crc, CRCS)
    for at in range(len(data)):
        assert decode_sums(data[:at]) is None
        assert decode_sums(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None


class Stored:
    """One linked payload."""

    def __init__(self, *, with_sums: bool) -> None:
        self.files = SimFiles(RealRandom(1))
        self.files.make_dirs("/p")
        self.payloads = PayloadFiles(self.files, "/p", threading.Lock())
        self.receive(DATA)
        self.payloads.link([PayloadLink(7, PAYLOAD)])
        if with_sums:
            self.payloads.save_sums(ID, BlockSums(len(DATA), PAYLOAD.crc, CRCS))
        found = self.payloads.find(ID)
        assert found is not None
        self.path = found.path

    def receive(self, data: bytes, payload: Payload = PAYLOAD) -> None:
        have_whole(self.payloads, payload, data)

    def receive_other(self) -> None:
        """Other content of the id, with its checksums."""
        self.receive(OTHER_DATA, OTHER)
        sums = run_through(build_sums(self.payloads.open_linked(PayloadLink(-1, OTHER))[1], OTHER))
        self.payloads.save_sums(ID, sums)

    def open_again(self) -> PayloadFiles:
        self.payloads = PayloadFiles(self.files, "/p", threading.Lock())
        return self.payloads

    def flip(self, at: int) -> None:
        file = self.files.open(self.path)
        file.write_at(at, bytes([DATA[at] ^ 1]))

    def read(self, start: int, end: int) -> bytes:
        found = run_through(open_verified(self.payloads, ID, start, end))
        position = start
        end = len(DATA) if end < 0 else end
        pieces = []
        while length := found.piece_length(position, end):
            crc = found.check(position, length)
            pieces.append(found.file.read_at(position, length))
            assert crc32c(pieces[-1]) == crc
            position += length
        found.end()
        return b"".join(pieces)

    def names(self) -> list[str]:
        return [name.rpartition(".")[2] for name in sorted(self.files.list_dir("/p/payloads"))]


RANGES = [(0, -1), (0, 1), (BLOCK_BYTES - 1, BLOCK_BYTES + 1), (1, -1), (len(DATA) - 1, -1)]


@pytest.mark.parametrize("with_sums", [True, False])
@pytest.mark.parametrize(("start", "end"), RANGES)
def test_ranges_are_compared(with_sums: bool, start: int, end: int) -> None:
    stored = Stored(with_sums=with_sums)
    expected = DATA[start : len(DATA) if end < 0 else end]
    assert stored.read(start, end) == expected
    assert "sums" in stored.names(), "the first read writes what is missing"
    for block in range(3):
        stored.flip(block * BLOCK_BYTES + 500)
        first, last = start // BLOCK_BYTES, ((end if end >= 0 else len(DATA)) - 1) // BLOCK_BYTES
        if first <= block <= last:
            with pytest.raises(PayloadDamaged, match=str(block * BLOCK_BYTES)):
                stored.read(start, end)
        else:
            assert stored.read(start, end) == expected, "another block does not matter"
        stored.files.open(stored.path).write_at(0, DATA)


@pytest.mark.parametrize(("start", "end"), RANGES)
def test_damage_is_found_without_sums(start: int, end: int) -> None:
    stored = Stored(with_sums=False)
    stored.flip(BLOCK_BYTES + 5)
    with pytest.raises(PayloadDamaged):
        stored.read(start, end)
    assert "sums" not in stored.names()


@pytest.mark.parametrize("size", [0, 5, BLOCK_BYTES, len(DATA) - 1])
@pytest.mark.parametrize("with_sums", [True, False])
def test_a_file_that_is_cut_is_damaged(size: int, with_sums: bool) -> None:
    stored = Stored(with_sums=with_sums)
    stored.files.open(stored.path).truncate(size)
    again = PayloadFiles(stored.files, "/p", threading.Lock())
    for payloads in (stored.payloads, again):
        stored.payloads = payloads
        with pytest.raises(PayloadDamaged):
            stored.read(0, -1)
        with pytest.raises(PayloadDamaged):
            run_through(open_verified(payloads, ID, len(DATA) - 9, len(DATA))).check(
                len(DATA) - 9, 9
            )
        with pytest.raises(PayloadDamaged):
            verify_payload(payloads, PayloadLink(7, PAYLOAD), lambda _: None)


def test_damaged_sums_are_written_again() -> None:
    stored = Stored(with_sums=True)
    wrong = BlockSums(len(DATA), PAYLOAD.crc, [1, 2, 3])
    stored.payloads.save_sums(ID, wrong)
    verify_payload(stored.payloads, PayloadLink(7, PAYLOAD), lambda _: None)
    assert stored.read(3, 9) == DATA[3:9]
    stored.files.open(SUMS).write_at(9, b"x")
    assert stored.read(3, 9) == DATA[3:9]
    blocks: list[int] = []
    verify_payload(stored.payloads, PayloadLink(7, PAYLOAD), blocks.append)
    assert blocks == [BLOCK_BYTES, BLOCK_BYTES, 999]


def test_sums_go_with_their_payload() -> None:
    stored = Stored(with_sums=True)
    assert stored.names() == ["linked", "sums"]
    stored.payloads.remove_linked([7])
    assert stored.names() == []
    stored = Stored(with_sums=True)
    stored.files.remove(stored.path)
    PayloadFiles(stored.files, "/p", threading.Lock())
    assert stored.names() == [], "a crash between the two removals"
    with pytest.raises(PayloadMissing):
        run_through(open_verified(PayloadFiles(stored.files, "/p", threading.Lock()), ID, 0, -1))


def test_sums_that_were_not_written_to_their_end_are_removed() -> None:
    stored = Stored(with_sums=True)
    stored.files.open(f"{SUMS}.new", create=True)
    assert stored.names() == ["linked", "sums", "new"]
    PayloadFiles(stored.files, "/p", threading.Lock())
    assert stored.names() == ["linked", "sums"]


@pytest.mark.parametrize("restarts", [False, True])
def test_each_content_of_an_id_has_sums_of_its_own(restarts: bool) -> None:
    stored = Stored(with_sums=True)
    stored.receive_other()
    stored.payloads.link([PayloadLink(8, OTHER)])
    payloads = stored.open_again() if restarts else stored.payloads
    assert [sums_of(payloads, each) for each in (PAYLOAD, OTHER)] == [True, True]
    assert payloads.remove_linked([7]) == PAYLOAD.size
    assert [sums_of(payloads, each) for each in (PAYLOAD, OTHER)] == [False, True]
    payloads.save_sums(ID, BlockSums(len(DATA), PAYLOAD.crc, CRCS))
    assert not stored.files.exists(SUMS), "it is gone"
    assert payloads.remove_linked([8]) == OTHER.size
    assert stored.names() == []


def sums_of(payloads: PayloadFiles, payload: Payload) -> bool:
    """Whether a payload has checksums, which are right then."""
    sums = payloads.load_sums(payload)
    if sums is None:
        return False
    _, file = payloads.open_linked(PayloadLink(-1, payload))
    assert list(sums.crcs) == list(run_through(build_sums(file, payload)).crcs)
    return True


def test_the_sums_of_a_payload_that_is_replaced_go_with_it() -> None:
    stored = Stored(with_sums=True)
    stored.payloads.unlink_from(0)
    stored.receive_other()
    assert stored.names() == ["sums", "whole"]
    assert stored.files.exists(OTHER_SUMS)
    stored.receive(DATA)
    stored.payloads.link([PayloadLink(7, PAYLOAD)])
    assert stored.names() == ["linked"]


def test_the_sums_of_a_content_stay_as_long_as_one_of_its_files() -> None:
    """As where a payload was sent again although it is there."""
    stored = Stored(with_sums=True)
    stored.receive(DATA)
    assert stored.names() == ["linked", "sums", "whole"]
    assert stored.payloads.discard_whole(ID) == len(DATA)
    assert sums_of(stored.payloads, PAYLOAD)
    stored.receive(DATA)
    stored.payloads.remove_linked([7])
    assert sums_of(stored.payloads, PAYLOAD)
    stored.payloads.discard_whole(ID)
    assert stored.names() == []


@pytest.mark.parametrize("operation", [1, 2])
def test_a_payload_that_counts_as_whole_has_its_file_whatever_cannot_be_removed(
    operation: int,
) -> None:
    """A record that came next was appended with a payload whose file had gone, and its sums had
    not."""
    stored = Stored(with_sums=True)
    stored.payloads.unlink_from(0)
    stored.files.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        stored.payloads.discard_whole(ID)
    assert stored.payloads.has(PAYLOAD)
    assert "whole" in stored.names()
    assert stored.payloads.discard_whole(ID) == len(DATA)
    assert stored.names() == []


def test_sums_of_earlier_releases_are_read_and_removed_with_the_last_content() -> None:
    stored = Stored(with_sums=True)
    stored.files.rename(SUMS, OLDER_SUMS)
    payloads = stored.open_again()
    assert sums_of(payloads, PAYLOAD)
    stored.receive_other()
    payloads.link([PayloadLink(8, OTHER)])
    assert sums_of(payloads, PAYLOAD)
    payloads = stored.open_again()
    payloads.remove_linked([8])
    assert sums_of(payloads, PAYLOAD)
    payloads.remove_linked([7])
    assert stored.names() == []


def test_sums_of_a_content_that_has_gone_are_removed() -> None:
    """As where an earlier release has removed the payload only."""
    stored = Stored(with_sums=True)
    stored.receive_other()
    stored.payloads.link([PayloadLink(8, OTHER)])
    stored.files.remove(stored.path)
    stored.open_again()
    assert not stored.files.exists(SUMS)
    assert stored.files.exists(OTHER_SUMS)


def read_all(stored: Stored) -> None:
    assert stored.read(0, -1) == DATA


def read_part(stored: Stored) -> None:
    assert stored.read(3, 9) == DATA[3:9]


def verify(stored: Stored) -> None:
    verify_payload(stored.payloads, PayloadLink(7, PAYLOAD), lambda _: None)


@pytest.mark.parametrize("use", [read_all, read_part, verify])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE, SHORT])
@pytest.mark.parametrize("sums", ["none", "good", "damaged"])
def test_sums_that_cannot_be_read_or_written_do_no_harm(
    use: Callable[[Stored], None], error: int, sums: str
) -> None:
    """They are made again from the payload, which is right."""
    failed_at = set()
    for operation in count(1):
        stored = Stored(with_sums=sums != "none")
        if sums == "damaged":
            stored.files.open(SUMS).write_at(9, b"x")
        done = len(stored.files.operations)
        stored.files.fail(operation, error)
        try:
            use(stored)
        except OSError:
            assert ".sums" not in stored.files.operations[done + operation - 1]
        if stored.files.fault_pending():
            break
        failed_at.add(stored.files.operations[done + operation - 1].split()[0])
        assert not {"sums.new", "new"} & set(stored.names()), "of each file its name is known"
        use(stored)
        verify(stored)
        assert stored.names() == ["linked", "sums"]
    assert sums == "good" or {"create", "truncate", "write", "rename"} <= failed_at


def test_a_repair_replaces_the_file() -> None:
    stored = Stored(with_sums=True)
    stored.flip(5)
    file = stored.payloads.create(ID)
    file.write_at(0, DATA)
    assert stored.payloads.replace(file, PayloadLink(7, PAYLOAD))
    assert stored.read(0, -1) == DATA
    assert stored.names() == ["linked", "sums"]
    assert stored.payloads.bytes == len(DATA)
    stored.files.crash()
    again = PayloadFiles(stored.files, "/p", threading.Lock())
    found = again.find_at(7)
    assert found is not None
    assert stored.files.read_bytes(found.path) == DATA
