"""Planted bugs of what is said or counted before the disk has it."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Write
from bascule.raft.messages import AppendReply, ChunkReply
from bascule.raft.roles.core import Core
from bascule.raft.roles.follower import Following
from bascule.raft.roles.leader import Leading
from bascule.sim.mutants.base import Planted, instead

MATCH: Final = "a match is durable"
COMMIT: Final = "a commit is a majority's"
LOST: Final = "no committed entry lost"


def _ack_before_flush(original: Any) -> Any:
    def send_when_durable(self: Core, message: Any) -> None:
        if isinstance(message, AppendReply):
            self.send(message)
        else:
            original(self, message)

    return send_when_durable


def _write_without_sync(original: Any) -> Any:
    def take_write(self: Core) -> Write | None:
        write: Write | None = original(self)
        if write is None or write.vote is not None:
            return write
        return replace(write, sync=False)

    return take_write


def _leader_counts_itself(original: Any) -> Any:
    def maybe_commit(self: Leading) -> bool:
        core = self._core
        synced, core.synced = core.synced, core.log.last
        try:
            return bool(original(self))
        finally:
            core.synced = synced

    return maybe_commit


def _superseded_write_counts(original: Any) -> Any:
    def forget_written(self: Core, index: int) -> None:
        lasts = [write.last for write in self._underway]
        original(self, index)
        for write, last in zip(self._underway, lasts, strict=True):
            write.last = last

    return forget_written


def _install_before_durable(original: Any) -> Any:
    def on_chunk(self: Following, message: ChunkReply) -> None:
        collector = self.collector
        snapshot = None if collector is None else collector.on_chunk(message)
        if snapshot is not None:
            core = self._core
            core.install(snapshot)
            self.on_installed(snapshot.index)
            if core.leader:
                self.has_reached(core.leader, snapshot.index)

    return on_chunk


BUGS: Final = (
    Planted(
        name="ack before flush",
        found_by=(MATCH,),
        patch=instead(Core, "send_when_durable", _ack_before_flush),
    ),
    Planted(
        name="entries written without sync",
        found_by=(MATCH, COMMIT),
        patch=instead(Core, "take_write", _write_without_sync),
    ),
    Planted(
        name="leader counts itself before its write is done",
        found_by=(COMMIT,),
        patch=instead(Leading, "maybe_commit", _leader_counts_itself),
    ),
    Planted(
        name="completion of a superseded write counts",
        found_by=(MATCH, COMMIT),
        patch=instead(Core, "_forget_written", _superseded_write_counts),
    ),
    Planted(
        name="snapshot installed before it is durable",
        found_by=(MATCH, LOST),
        patch=instead(Following, "on_chunk", _install_before_durable),
    ),
)
