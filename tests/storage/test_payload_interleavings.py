"""Whatever happens while the name of a payload is synced, its file is known, and there."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from bascule.errors import PayloadMissing
from bascule.host.real import RealRandom
from bascule.record.payload_links import PayloadLink
from bascule.sim.disk import RandomChoices, SimFiles
from storage.test_payload_records import EMPTY, A, B, batch, check, payload, receive
from support.payload_logs import id_of, opened

DEPTH_MAX = 3
"""Senders whose payloads are being finished at one time."""


class Round:
    """One log, whose payloads are changed again and again while names are synced. The disk fails
    now and then."""

    def __init__(self, seed: int) -> None:
        self.dice = RandomChoices(RealRandom(seed))
        self.files = SimFiles(RealRandom(seed + 1_000_000))
        self.log = opened(self.files)
        self.log.payloads.create(id_of(5))
        self.finishing = 0
        self.fails = self.may_act = False
        self.sync, self.rename, self.remove = (
            self.files.sync_dir, self.files.rename, self.files.remove,
        )  # fmt: skip
        self.files.sync_dir = self._sync  # type: ignore[method-assign]
        self.files.rename = self._rename  # type: ignore[method-assign]
        self.files.remove = self._remove  # type: ignore[method-assign]

    def _maybe_fail(self) -> None:
        if self.fails and self.dice.below(5) < 2:
            raise OSError(errno.EIO, "Input/output error")

    def _rename(self, source: str, target: str) -> None:
        self._maybe_fail()
        self.rename(source, target)

    def _remove(self, path: str) -> None:
        self._maybe_fail()
        self.remove(path)

    def _sync(self, path: str) -> None:
        if self.may_act and path == self.log.payloads.directory:
            for _ in range(self.dice.below(3)):
                self.act()
            self._maybe_fail()
        self.sync(path)

    def act(self) -> None:
        """Whoever else changes payloads does so while nobody holds their lock."""
        before, self.may_act = self.may_act, False
        with suppress(OSError, PayloadMissing):
            self._act(self.dice.below(11), self.dice.below(2))
        self.may_act = before
        check(self.log)
        payloads = self.log.payloads
        names = {*self.files.list_dir(payloads.directory)}
        assert names >= {*payloads.whole_file_names()}

    def _act(self, kind: int, number: int) -> None:
        log, content = self.log, (A, B, EMPTY)[self.dice.below(3)]
        if kind < 4:
            self.finishing += 1
            self.may_act = self.finishing <= DEPTH_MAX
            try:
                receive(log, content, number)
            finally:
                self.finishing -= 1
        elif kind < 7:
            offset = log.end.offset
            log.append(batch(offset, content, number=number))
            link = PayloadLink(offset, payload(content, number))
            assert not log.payloads.missing([link])
        elif kind == 7:
            log.payloads.discard_whole(id_of(number))
        elif kind == 8:
            log.payloads.discard(id_of(number))
        elif kind == 9 and log.end.offset > log.start_offset:
            log.sync()
            log.advance_start(log.start_offset + 1, high_watermark=log.end.offset)
            log.sweep()
        elif kind == 10:
            self.fails = not self.dice.below(3)

    def end(self) -> None:
        self.fails = False
        payloads = self.log.payloads
        payloads.settle()
        wanted = {*payloads.whole_file_names(), *(f"{id}.open" for id in payloads.open_ids())}
        assert {*self.files.list_dir(payloads.directory)} == wanted
        again = opened(self.files)
        check(again)
        assert again.payloads.bytes == payloads.bytes


@pytest.mark.parametrize("part", range(4))
def test_a_payload_has_its_file_whatever_happens_while_names_are_synced(part: int) -> None:
    for seed in range(part * 25, part * 25 + 25):
        try:
            found = Round(seed)
            for _ in range(40):
                found.act()
            found.end()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
