"""Mutants of payloads: what is whole, what is linked, and what is left over."""

from __future__ import annotations

from typing import Any, Final

from crc32c import crc32c
from msgspec.structs import replace

from bascule.datastream import inbound
from bascule.datastream.disk.leftovers import Leftovers
from bascule.replica.scrub.payloads import ScrubbedPayloads
from bascule.sim.cluster.payloads.checkers import KEPT, UNHURT, UNMIXED, WHOLE
from bascule.sim.cluster.payloads.client import ONLY_EXPECTED, READ_RIGHT
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import PROGRESS, ClusterMutant
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.block_steps import Steps
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.payload_log import PayloadLog


def _miss_nothing(_: Any) -> Any:
    def mutant(*_: Any) -> list[Any]:
        """Append a record, and count it, before its payload is whole."""
        return []

    return mutant


class _Unsynced:
    """A file whose syncs do nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _finish_unsynced(finish: Any) -> Any:
    def mutant(self: Any, file: Any, payload: Any) -> None:
        """Take a payload for whole that is in the page cache only."""
        finish(self, _Unsynced(file), payload)

    return mutant


def _remove_linked(remove: Any) -> Any:
    def mutant(self: Any, stream_id: bytes, partition: int, store: PayloadLog) -> None:
        """Take all payloads for left over that nobody sends, also those that a record names."""
        remove(self, stream_id, partition, store)
        store.payloads.remove_linked(store.payloads.linked_offsets()[:1])

    return mutant


def _remove_nothing(_: Any) -> Any:
    def mutant(*_: Any) -> None:
        """Keep what was begun and abandoned."""

    return mutant


def _write_behind(begin: Any) -> Any:
    def mutant(self: Any, head: Any) -> None:
        """Write a packet that is sent again where the received bytes end, not at its position."""
        begin(self, head)
        self._position += self._skip

    return mutant


def _pass_names(_: Any) -> Any:
    def mutant(self: Any, offset: int, *, high_watermark: int) -> Any:
        """Have a purge write a checkpoint that passes links whose names are not synced."""
        return PartitionLog.advance_start(self, offset, high_watermark=high_watermark)

    return mutant


def _trust_size(_: Any) -> Any:
    def mutant(self: Any, id: str) -> Steps[tuple[int, int]]:
        """Take over all bytes that a file has, whether they were confirmed or not."""
        yield
        file = self.create(id)
        data = file.read_at(0, file.size())
        return len(data), crc32c(data)

    return mutant


def _verify_nothing(_: Any) -> Any:
    def mutant(*_: Any) -> list[Any]:
        """Read no payloads with the logs that are scrubbed."""
        return []

    return mutant


_PLAIN: Final = ClusterOptions(groups=0, seconds=8, streams=1, traits="payloads", faults="kill")
_LOSSES: Final = replace(_PLAIN, faults="kill,loss of a leader,pause,split,isolate")
_POWER: Final = replace(_PLAIN, seconds=12, faults="power loss,outage")
_PURGES: Final = replace(_PLAIN, seconds=12, faults="power loss,outage,purge")
MUTANTS: Final = (
    ClusterMutant(
        "payload not awaited", (WHOLE, KEPT, READ_RIGHT, UNHURT),
        PayloadFiles, "missing", _miss_nothing, _LOSSES,
    ),
    ClusterMutant(
        "payload not synced", (UNMIXED, WHOLE, KEPT, UNHURT),
        PayloadFiles, "finish", _finish_unsynced, _POWER,
    ),
    ClusterMutant(
        "linked payloads left over", (WHOLE, KEPT, READ_RIGHT, UNHURT),
        Leftovers, "remove", _remove_linked, _PLAIN,
    ),
    ClusterMutant(
        "leftovers kept", (PROGRESS,),
        Leftovers, "remove", _remove_nothing, _PLAIN,
    ),
    ClusterMutant(
        "resumed at another position", (UNMIXED, WHOLE, READ_RIGHT, UNHURT, ONLY_EXPECTED),
        inbound._Sink, "begin", _write_behind, _LOSSES,
    ),
    ClusterMutant(
        "unconfirmed bytes taken over", (ONLY_EXPECTED,),
        PayloadFiles, "recover_part", _trust_size, _POWER,
    ),
    ClusterMutant(
        "purge passes names", (WHOLE, KEPT, READ_RIGHT),
        PayloadLog, "advance_start", _pass_names, _PURGES,
    ),
    ClusterMutant(
        "payloads not scrubbed", (PROGRESS,),
        ScrubbedPayloads, "verify", _verify_nothing, replace(_PLAIN, nodes=5, faults="bit flips"),
    ),
)  # fmt: skip
