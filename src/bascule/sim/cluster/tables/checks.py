"""`TableChecks`: what must hold for one table, of what its clients saw and its replicas have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final

from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.histories.linearizability import Linearizability
from bascule.sim.checkers.histories.sessions import SessionChecker, Written
from bascule.sim.checkers.history import ClientOperation, OperationResult
from bascule.sim.cluster.checkers.log_contents import StoredRecord
from bascule.sim.cluster.tables.contents import StoredOperation, StoredTable

RISING: Final = "operation ids rise"
OPLOG: Final = "oplogs are complete"
WATCHED: Final = "watchers see every newest state"
ORDERED: Final = "watchers see each version once, in order"
IN_LOG: Final = "sessions are within the log"
DECIDED: Final = "histories are decided"
SET, REMOVE = 1, 2
FRESH_SESSION: Final = 1_000_000
"""Reads of no session have numbers from here on."""


class TableChecks:
    """Of one table. After an unclean election nothing is known any more."""

    def __init__(self, name: str, is_lost: Callable[[], bool]) -> None:
        """`is_lost`: whether an unclean election may have lost acknowledged writes."""
        self.name = name
        self._is_lost = is_lost
        self._history = Linearizability()
        self._sessions = SessionChecker()
        self._numbers = itertools.count()
        self.latest = -1
        """The highest version that any client was told."""
        self._found: InvariantBroken | None = None
        self.reads = self.writes = 0
        """That were answered."""

    def number(self) -> int:
        """Of an operation; all values that clients write differ."""
        return next(self._numbers)

    # -- what clients do ------------------------------------------------------------------------

    def on_invoke(self, operation: ClientOperation) -> int:
        """An operation begins. Returns what its version has to be above, if it writes."""
        self._history.on_invoke(operation)
        return self.latest

    def on_return(self, operation: ClientOperation, result: OperationResult) -> None:
        """It has ended."""
        self._history.on_return(operation, result)

    def on_removal_begun(self, key: str) -> None:
        """See `SessionChecker`."""
        self._sessions.on_removal_begun(key)

    def on_written(
        self, client: int, key: str, version: int, value: bytes | None, *, above: int
    ) -> None:
        """A write was acknowledged. Its operation id, the version and 1, is higher than those of
        all that were acknowledged before it began, by whichever leader."""
        self.writes += 1
        if version <= above:
            text = f"client {client} wrote {key!r} at version {version}, after {above} was acked"
            self.find(InvariantBroken(RISING, text))
        self.latest = max(self.latest, version)
        try:
            self._sessions.on_written(client, key, version, value)
        except InvariantBroken as broken:
            self.find(broken)

    def on_read(self, session: int, key: str, version: int | None, value: bytes | None) -> None:
        """A read was answered; see `SessionChecker`."""
        self.reads += 1
        try:
            self._sessions.on_read(session, key, version, value)
        except InvariantBroken as broken:
            self.find(broken)

    def on_seen(self, key: str, version: int, value: bytes | None) -> None:
        """A watcher has seen a version."""
        seen = self._sessions.versions.setdefault(version, Written(key, value))
        if seen != (key, value):
            self.find(InvariantBroken(WATCHED, f"{key!r} at {version} is {value!r} and {seen}"))

    def find(self, broken: InvariantBroken) -> None:
        """Something is wrong, unless an unclean election has been before."""
        self._found = self._found or broken

    # -- looks ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Raises: InvariantBroken."""
        if self._found is not None and not self._is_lost():
            raise self._found

    def check_oplog(
        self,
        node: int,
        table: StoredTable,
        first: int,
        operations: list[StoredOperation],
        records: Mapping[int, StoredRecord],
    ) -> None:
        """The oplog of a replica has every operation from `first` on, each as the log has it. Up
        to where the table says that it has forgotten rows, they may be of none.

        `records` are those of the log that are known. Raises: InvariantBroken.
        """
        where = f"{self.name} on node {node}"
        keys = {row.id: row for row in table.rows}
        last, latest = first - 1, dict[int, StoredOperation]()
        for each in operations:
            if each.id <= last:
                raise InvariantBroken(RISING, f"{where}: operation {each.id} after {last}")
            last, latest[each.key] = each.id, each
            if each.id <= table.forgotten:
                continue
            row = keys.get(each.key)
            if row is None:
                raise InvariantBroken(OPLOG, f"{where}: {each} is of no row")
            if (record := records.get(each.id - 1)) is not None:
                wanted = record.key, REMOVE if record.body is None else SET
                if wanted != (row.key, each.operation):
                    raise InvariantBroken(OPLOG, f"{where}: {each} of {row.key!r} is {record}")
        if last > table.position:
            raise InvariantBroken(OPLOG, f"{where}: operation {last}, and {table.position} applied")
        for row in table.rows:
            if row.version + 1 < first:
                continue
            operation = latest.get(row.id)
            if operation is None or operation.id != row.version + 1:
                raise InvariantBroken(OPLOG, f"{where}: {row} has {operation}")

    # -- at the end -----------------------------------------------------------------------------

    def at_end(self, records: Mapping[int, StoredRecord]) -> None:
        """`records` are those of the log that are known. Raises: InvariantBroken."""
        self.look()
        if self._is_lost():
            return
        self._history.at_end(None)
        if self._history.undecided:
            raise InvariantBroken(DECIDED, f"too long: {self._history.undecided}")
        written = {
            offset: Written((record.key or b"").decode(), record.body)
            for offset, record in records.items()
        }
        self._sessions.check_log(written)
