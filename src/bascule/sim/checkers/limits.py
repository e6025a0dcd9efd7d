"""`BoundedMemory`: every section, window and queue of a node stays within its setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, cast

from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy, Ready, Role
from bascule.raft.messages import AnyMessage, AppendRequest, Entry, EntryKind, size_of
from bascule.raft.report import NodeReport
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView

REPORT_EVERY: Final = 64
"""The whole report of a node is checked after one of so many `Ready`s of all nodes."""


class Reporting(Protocol):
    """A node with a report."""

    def report(self) -> NodeReport: ...


class BoundedMemory(Checker):
    """A log has no more entries than its capacity, except no-ops of elections without a commit.
    What is in progress, in flight or waiting stays within its limits, and so does each message."""

    name = "bounded memory"

    sends = (AppendRequest,)

    def __init__(self) -> None:
        self._readies = 0
        self._configs: dict[int, RaftConfig] = {}

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        self._configs[node.id] = node.config

    def on_send(self, node_id: int, message: AnyMessage) -> None:
        if isinstance(message, AppendRequest) and message.entries:
            self._check_append(node_id, message.entries)

    def on_ready(self, node: NodeView, ready: Ready) -> None:
        log = node.log
        if log.last - log.first >= log.capacity:
            self._check_log(node)
        if ready.apply is not None and len(ready.apply.entries) > node.config.apply_entries_max:
            raise InvariantBroken(
                self.name,
                f"node {node.id} returns {len(ready.apply.entries)} entries to apply; the most "
                f"is {node.config.apply_entries_max}",
            )
        self._readies += 1
        if self._readies % REPORT_EVERY == 0:
            self._check_report(node)

    def on_propose(self, node: NodeView, ticket: int, payload: bytes) -> None:
        log, config = node.log, node.config
        pending = log.last - node.commit
        if pending > config.pending_entries_max:
            raise InvariantBroken(
                self.name,
                f"node {node.id} accepted a proposal as entry {pending} in progress; the most is "
                f"{config.pending_entries_max}",
            )
        if log.pending_bytes > config.pending_bytes_max and pending > 1:
            raise InvariantBroken(
                self.name,
                f"node {node.id} accepted a proposal that makes {log.pending_bytes} bytes in "
                f"progress; the most is {config.pending_bytes_max}",
            )

    def on_read(self, node: NodeView, ticket: int, policy: ReadPolicy, min_index: int) -> None:
        self._check_report(node)

    def at_end(self, nodes: Mapping[int, NodeView]) -> None:
        for node in nodes.values():
            self._check_report(node)

    def _check_log(self, node: NodeView) -> None:
        log = node.log
        entries = [log.entry(index) for index in range(log.first, log.last + 1)]
        beyond = len(log) - log.capacity
        if sum(entry.kind == EntryKind.NO_OP for entry in entries) < beyond:
            raise InvariantBroken(
                self.name,
                f"node {node.id} has {len(log)} entries, {log.first} to {log.last}; the capacity "
                f"is {log.capacity}",
            )

    def _check_append(self, node_id: int, entries: tuple[Entry, ...]) -> None:
        config = self._configs[node_id]
        if len(entries) > config.append_entries_max or (
            len(entries) > 1 and sum(map(size_of, entries)) > config.append_bytes_max
        ):
            raise InvariantBroken(
                self.name,
                f"node {node_id} sends {len(entries)} entries of {sum(map(size_of, entries))} "
                f"bytes at once; the most is {config.append_entries_max} of "
                f"{config.append_bytes_max} bytes",
            )

    def _check_report(self, node: NodeView) -> None:
        report, config = cast(Reporting, node).report(), node.config
        largest = max(config.append_bytes_max, config.pending_bytes_max)
        limits = [
            ("reads waiting", report.reads_waiting, config.reads_max),
            ("proposals waiting", report.proposals_waiting, 2 * config.log_capacity),
        ]
        if node.role is Role.LEADER:
            for follower in report.followers:
                to = f"to node {follower.node}"
                limits += [
                    (f"appends {to}", follower.inflight_appends, config.inflight_appends_max),
                    (
                        f"bytes in flight {to}",
                        follower.inflight_bytes,
                        config.inflight_bytes_max + largest,
                    ),
                ]
        for what, found, most in limits:
            if found > most:
                raise InvariantBroken(
                    self.name, f"node {node.id} has {found} {what}; the most is {most}"
                )
