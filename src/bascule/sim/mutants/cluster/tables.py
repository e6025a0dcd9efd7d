"""Mutants of tables: what clients read and watch, what replicas hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from msgspec.structs import replace

from bascule.controller.cluster.confirmation import LeaderConfirmation
from bascule.controller.cluster.tables.cluster_watches import ClusterWatches
from bascule.kafka.handlers import table_reads
from bascule.sim.checkers.histories.linearizability import Linearizability
from bascule.sim.checkers.histories.sessions import FOLLOWING, MONOTONIC, OWN_WRITES
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.cluster.tables.checks import IN_LOG, OPLOG, ORDERED, RISING, WATCHED
from bascule.sim.mutants.cluster.base import PROGRESS, ClusterMutant
from bascule.tables.ageing.forgotten import Forgotten
from bascule.tables.key_versions import KeyVersions
from bascule.tables.oplog import recorder
from bascule.tables.table_file import TableFile
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin

HISTORY: Final = Linearizability.name


def _unconfirmed(_: Any) -> Any:
    async def mutant(_: Any) -> None:
        """Take for granted that nobody else leads."""

    return mutant


def _taken_for_granted(_: Any) -> Any:
    async def mutant(*_: Any, **__: Any) -> bool:
        """Refuse what the last image that came here lets this node refuse."""
        return True

    return mutant


def _forgotten_position(decode: Any) -> Any:
    def mutant(body: Any) -> Any:
        """Wait for no position of a session."""
        return [read._replace(at_least=0) for read in decode(body)]

    return mutant


def _position_first(_: Any) -> Any:
    def mutant(file: Any, rows: Any, epoch: int) -> None:
        """Commit the position before the rows."""
        mark = file._recorder._mark or (None, None, None)
        file._writer.execute(
            "update state set position = ?, epoch = ?, oplog_first = ?, oplog_slots = ?, "
            "oplog_crc = ?",
            (rows.end, epoch, *mark),
        )
        file._writer.execute("commit")
        file._writer.execute("begin")
        write(file, rows, epoch)

    write = TableFile._write
    return mutant


def _own_ids(hot: Any) -> Any:
    """Every other oplog that is opened has numbers of its own, which rise, too."""
    opened: list[Any] = []

    def make_operations(rows: Any, noted: Any, next_key: int, out: Any) -> int:
        found: int = hot.make_operations(rows, noted, next_key, out)
        if not any(noted is each for each in opened):
            opened.append(noted)
        number = next(n for n, each in enumerate(opened) if each is noted)
        for at in range(0, len(out), hot.OPERATION_FIELDS):
            out[at] += number % 2
        return found

    return SimpleNamespace(make_operations=make_operations, OPERATION_FIELDS=hot.OPERATION_FIELDS)


def _from_now(watch: Any) -> Any:
    def mutant(watches: Any, table: str, pattern: Any, start: Any, *, of: Any = None) -> Any:
        """Begin with what comes next, also for a watcher that comes from another node."""
        return watch(watches, table, pattern, start if start is Begin.STATE else Begin.NOW, of=of)

    return mutant


def _from_before(watch: Any) -> Any:
    def mutant(watches: Any, table: str, pattern: Any, start: Any, *, of: Any = None) -> Any:
        """Begin with what the watcher has seen last."""
        if not isinstance(start, Begin):
            start = start._replace(offset=max(start.offset - 1, 0))
            of = None
        return watch(watches, table, pattern, start, of=of)

    return mutant


def _without_tail(_: Any) -> Any:
    def mutant(versions: Any, store: Any, keys: Any, end_offset: int) -> None:
        """Compare conditions with what the table has, whatever the log has behind it."""
        versions._end = end_offset

    return mutant


def _said_to_be_synced(_: Any) -> Any:
    def mutant(file: Any) -> None:
        """Have the log remove tombstones that a loss of power takes from the table."""
        file.synced = file.position.offset

    return mutant


def _from_the_beginning(_: Any) -> Any:
    def mutant(_: Any) -> int:
        """Have values in the table, and send them to copies, that are purged from the log."""
        return 0

    return mutant


def _forgotten_unsaid(_: Any) -> Any:
    def mutant(file: Any, *_: Any) -> Forgotten:
        """Forget each removal at once, whatever the oplog names, and say nothing of it."""
        with file._write_lock:
            deleted = file._writer.execute(
                "delete from entries where value is null and id < (select max(id) from entries)"
            )
        return Forgotten(deleted.rowcount, None, True, None)

    return mutant


def _with(faults: str) -> ClusterOptions:
    return ClusterOptions(
        groups=0, readers=0, seconds=8, streams=1, nodes=3, traits="table", faults=faults
    )


_DEPOSED: Final = replace(_with("deposed unheard"), seconds=20, traits="table,quiet")
_DEATHS: Final = _with("kill,power loss,outage")
_POWER: Final = _with("power loss")
_PURGES: Final = replace(_with("purge"), seconds=12)
_LEADERS: Final = _with("loss of a leader,planned election")
MUTANTS: Final = (
    ClusterMutant(
        "linearizable reads unconfirmed", (HISTORY, IN_LOG, OWN_WRITES, MONOTONIC),
        LeaderConfirmation, "confirm", _unconfirmed, _DEPOSED,
    ),
    ClusterMutant(
        "refusals unconfirmed", (HISTORY,),
        LeaderConfirmation, "is_confirmed", _taken_for_granted, _DEPOSED,
    ),
    ClusterMutant(
        "session position not awaited", (OWN_WRITES, MONOTONIC, FOLLOWING),
        table_reads, "decode_reads", _forgotten_position, _LEADERS,
    ),
    ClusterMutant(
        "table position committed before its rows", (PROGRESS, HISTORY, MONOTONIC, OPLOG),
        TableFile, "_write", _position_first, _DEATHS,
    ),
    ClusterMutant(
        "table said to be synced", (PROGRESS, HISTORY, MONOTONIC),
        TableFile, "sync", _said_to_be_synced, _POWER, 5,
    ),
    ClusterMutant(
        "operation ids of each node", (RISING, OPLOG, PROGRESS),
        recorder, "_hot", _own_ids, _LEADERS,
    ),
    ClusterMutant(
        "watcher skips at failover", (PROGRESS, WATCHED, ORDERED),
        ClusterWatches, "watch", _from_now, _LEADERS,
    ),
    ClusterMutant(
        "watcher sees a version twice", (ORDERED,),
        ClusterWatches, "watch", _from_before, _LEADERS,
    ),
    ClusterMutant(
        "conditions without the end of the log", (HISTORY,),
        KeyVersions, "_read_tail", _without_tail, _LEADERS, 2,
    ),
    ClusterMutant(
        "removals forgotten that the oplog names", (OPLOG, PROGRESS),
        TableFile, "forget", _forgotten_unsaid, _LEADERS,
    ),
    ClusterMutant(
        "purged values kept", (PROGRESS,), TableReplica, "_oldest", _from_the_beginning, _PURGES,
    ),
)  # fmt: skip
