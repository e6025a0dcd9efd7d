"""Leaders that are silent to their followers: followers report them, and the controller counts.

A leader may answer the controller and serve nobody: its listener may be cut off from the followers,
or its disk may hang. A follower that gets no answer reports that, again and again. When a majority
of the ISR without the leader reports within `WINDOW_NS`, the controller elects one of them. A new
controller begins with no reports, on its own clock, and gets those that are repeated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from bascule.controller.cluster.duties import ControllerDuties
from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import BasculeError, NotLeader
from bascule.host.api import Clock
from bascule.metadata.elections import changes_after_silence
from bascule.metadata.requests import ReplaceLeader
from bascule.metadata.silence import SilenceReport, SilenceReports

log = logging.getLogger("bascule.controller")

SILENCE: Final = "silence"
"""The kind of control request that reports a silent leader."""
REPORT_SECONDS_MAX: Final = 1.0
LOOKED_AT_MAX: Final = 2_000
"""Partitions that a report has the controller look at in one turn of the loop: some 10 ms."""


class SilentLeaders:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        peers: Peers,
        duties: ControllerDuties,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._peers = peers
        self._duties = duties
        self._clock = clock
        self._reports = SilenceReports()
        self._term = 0
        """The term of the controller to which the reports belong."""
        self._reporting: dict[int, asyncio.Task[None]] = {}
        """Leader -> the report of it that is under way."""
        self._looked_for: dict[int, bool] = {}
        """Leader whose partitions the controller looks at -> whether reports came meanwhile."""
        self._is_closed = False

    def close(self) -> None:
        """Report nothing any more."""
        self._is_closed = True
        for task in self._reporting.values():
            task.cancel()

    # -- a follower -----------------------------------------------------------------------------

    def on_silent(self, leader: int, reason: str) -> None:
        """A leader does not answer this node. Called again as long as it does not."""
        node = self._metadata.image.nodes.get(leader)
        epoch = self._duties.node_epoch
        if self._is_closed or node is None or epoch < 0 or leader in self._reporting:
            return
        report = SilenceReport(
            reporter=self._node_id,
            reporter_epoch=epoch,
            suspect=leader,
            suspect_epoch=node.epoch,
            reason=reason,
        )
        task = asyncio.get_running_loop().create_task(self._report(report))
        self._reporting[leader] = task
        task.add_done_callback(lambda _: self._reporting.pop(leader, None))

    async def _report(self, report: SilenceReport) -> None:
        controller = self._metadata.controller_id
        try:
            if self._metadata.is_controller:
                await self._on_report(report)
            elif controller:
                body = msgspec.msgpack.encode(report)
                await self._peers.control(controller, SILENCE, body, timeout_s=REPORT_SECONDS_MAX)
        except BasculeError as error:
            log.debug(
                "silence of a leader not reported",
                extra={"node": report.suspect, "error": str(error)},
            )

    # -- the controller -------------------------------------------------------------------------

    async def answer_report(self, body: bytes) -> bytes:
        """Count the report of a follower. Raises: NotLeader where this is not the controller."""
        if not self._metadata.is_controller:
            raise NotLeader(self._metadata.controller_id or None, term=self._metadata.term)
        await self._on_report(msgspec.msgpack.decode(body, type=SilenceReport))
        return b""

    async def _on_report(self, report: SilenceReport) -> None:
        metadata = self._metadata
        if self._term != metadata.term:
            self._term = metadata.term
            self._reports.clear()
        metadata.counts.silence_reports += 1
        now_ns = self._clock.monotonic_ns()
        if self._reports.add(report, now_ns):
            log.warning(
                "a leader does not answer a follower",
                extra={
                    "node": report.suspect,
                    "follower": report.reporter,
                    "reason": report.reason,
                },
            )
        is_looked_at = report.suspect in self._looked_for
        self._looked_for[report.suspect] = True
        if is_looked_at:
            return
        try:
            while self._looked_for[report.suspect]:
                self._looked_for[report.suspect] = False
                await self._replace(report)
        finally:
            del self._looked_for[report.suspect]

    async def _replace(self, report: SilenceReport) -> None:
        """Have others lead where enough followers report the node that `report` is about."""
        metadata, suspect, epoch = self._metadata, report.suspect, report.suspect_epoch
        reporters = self._reports.reporters(suspect, epoch, self._clock.monotonic_ns())
        count = await self._count_changes(suspect, epoch, reporters)
        if not count:
            return
        await metadata.decide_here(ReplaceLeader(suspect, epoch, reporters))
        metadata.counts.silent_leaders_replaced += count
        log.warning(
            "silent leader replaced",
            extra={
                "node": suspect,
                "followers": sorted(reporters),
                "partitions": count,
                "reason": report.reason,
            },
        )

    async def _count_changes(self, suspect: int, epoch: int, reporters: dict[int, int]) -> int:
        """How many partitions get another leader. Other work comes between the parts of a look at
        very many."""
        count = 0
        for ids in self._metadata.image.id_lists(LOOKED_AT_MAX):
            change = changes_after_silence(self._metadata.image, suspect, epoch, reporters, ids)
            count += 0 if change is None else len(change.changes)
            await asyncio.sleep(0)
        return count
