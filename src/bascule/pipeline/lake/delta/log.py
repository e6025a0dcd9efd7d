"""Reads the log of a Delta table for the state that Bascule's commits recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from deltalake import DeltaTable
from deltalake.transaction import Transaction

from bascule.errors import CorruptData
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.commit_plan import (
    ONCE,
    TableState,
    digests_of,
    digests_text,
    state_of,
    state_texts,
)
from bascule.pipeline.lake.model import SpanDigest

KEY: Final = "bascule"
COMMIT: Final = re.compile(r"(\d{20})\.json")
NUMBERED: Final = re.compile(r"(\d{20})\..+")
STAGED: Final = "#"
"""In the name of a file that another committer has not renamed yet."""
LAST_CHECKPOINT: Final = "_last_checkpoint"
APP: Final = "bascule:"


class CommitInfo(msgspec.Struct, kw_only=True):
    """The commitInfo of one version."""

    version: int
    ms: int
    own: dict[str, Any] | None
    """Bascule's state; None if another program committed."""
    operation: str = ""
    """`WRITE`, `DELETE`, `OPTIMIZE`, ..."""
    restored: int | None = None
    """The version that a RESTORE went back to; -1 if it is not recorded."""

    @property
    def digests(self) -> list[SpanDigest]:
        return digests_of(self.own["spans"]) if self.own else []


def own_metadata(
    state: TableState, digests: Sequence[SpanDigest], *, rows: int, bytes: int, kind: str
) -> dict[str, Any]:
    """Custom metadata for a commit."""
    texts = state_texts(state)
    return {
        KEY: {**texts, "spans": digests_text(digests), "rows": rows, "bytes": bytes, "kind": kind}
    }


def transactions(
    state: TableState, digests: Sequence[SpanDigest], before: TableState
) -> list[Transaction]:
    """The application transactions that one commit changes. Delta keeps them for ever, so those of
    writers of one batch are not among them: a commit that failed is repeated only if it surely
    changed nothing."""
    committed = state.committed or {}
    found = []
    for number in sorted({each.span.partition for each in digests}):
        start, end = committed[number]
        found += [
            Transaction(f"{APP}start:{number}", start),
            Transaction(f"{APP}end:{number}", end),
        ]
    if digests:
        found.append(Transaction(f"{APP}partitions", max(committed) + 1))
    known = before.tokens or {}
    found += [
        Transaction(f"{APP}token:{writer}", batch)
        for writer, batch in sorted((state.tokens or {}).items())
        if known.get(writer) != batch and not writer.startswith(ONCE)
    ]
    return found


class DeltaLog:
    """The folder `_delta_log` of one table."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._filesystem, inner = storage.filesystem_of(f"{location}/_delta_log")
        self._folder = inner

    def info(self, version: int) -> CommitInfo | None:
        """The commitInfo of a version; None if its commit is no longer in the log.

        Raises: CorruptData.
        """
        for action in self._actions(version):
            if "commitInfo" in action:
                found = action["commitInfo"]
                return CommitInfo(
                    version=version,
                    ms=found.get("timestamp", 0),
                    own=found.get(KEY),
                    operation=found.get("operation", ""),
                    restored=_restored(found),
                )
        return None

    def added(self, version: int) -> list[str]:
        """Paths that a version added, as written in the log. Raises: CorruptData."""
        return [action["add"]["path"] for action in self._actions(version) if "add" in action]

    def versions(self) -> list[int]:
        """Versions whose commits are in the log, ascending."""
        return sorted(int(found[1]) for name in self._names() if (found := COMMIT.fullmatch(name)))

    def remove_before(self, version: int) -> None:
        """Remove commits and checkpoints of earlier versions, newest first."""
        going = [
            name
            for name in self._names()
            if (found := NUMBERED.fullmatch(name)) and int(found[1]) < version
        ]
        for name in sorted(going, reverse=True):
            self._filesystem.delete_file(f"{self._folder}/{name}")

    def sync(self, version: int) -> None:
        """Sync the commit of a version, its checkpoint, and the pointer to the last checkpoint.
        delta-rs syncs nothing. Does nothing for a table in an object store.

        Raises: OSError.
        """
        if not storage.local_path(self._location):
            return
        number = f"{version:020d}."
        names = [
            name
            for name in self._names()
            if (name.startswith(number) and STAGED not in name) or name == LAST_CHECKPOINT
        ]
        storage.sync_files((f"{self._folder}/{name}" for name in names), root=self._location)

    def path(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _names(self) -> list[str]:
        return [info.base_name for info in storage.entries_below(self._filesystem, self._folder)]

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        path = self.path(version)
        try:
            with self._filesystem.open_input_stream(path) as stream:
                data = stream.read()
        except FileNotFoundError:
            return
        try:
            yield from (msgspec.json.decode(line) for line in data.splitlines() if line.strip())
        except msgspec.DecodeError as error:
            raise CorruptData(path, 0, "one JSON action a line", str(error)) from error


def _restored(found: dict[str, Any]) -> int | None:
    if found.get("operation") != "RESTORE":
        return None
    text = str(found.get("operationParameters", {}).get("version"))
    return int(text) if text.isdigit() else -1


def state_at(log: DeltaLog, table: DeltaTable, version: int) -> TableState:
    """The state at a loaded version.

    Versions of other programs (an optimize by Spark) have no state and change none. Then the
    preceding version has the state, or the application transactions if that version is gone. After
    a RESTORE the version that it went back to has the state. Transactions are not restored, so then
    the state has no spans if that version is gone.
    """
    at = version
    is_restored = False
    while (info := log.info(at)) is not None:
        if info.own is not None:
            return state_of(info.own)
        is_restored = is_restored or info.restored is not None
        at = at - 1 if info.restored is None else info.restored
    configured = table.metadata().configuration
    committed = {}
    known = 0 if is_restored else table.transaction_version(f"{APP}partitions") or 0
    for number in range(known):
        end = table.transaction_version(f"{APP}end:{number}")
        if end is not None:
            start = table.transaction_version(f"{APP}start:{number}")
            committed[number] = (start or 0, end)
    return TableState(
        configured.get("bascule.stream", ""),
        configured.get("bascule.stream-id", ""),
        committed,
    )


def with_token(state: TableState, table: DeltaTable, writer: str) -> TableState:
    """Add the last batch of a writer from Delta's application transactions."""
    last = table.transaction_version(f"{APP}token:{writer}")
    if last is None:
        return state
    return replace(state, tokens={**(state.tokens or {}), writer: last})
