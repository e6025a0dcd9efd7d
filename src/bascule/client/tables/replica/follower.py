"""Keeps a copy of a table up to date, and offers the writes that were made on it."""

# These timeouts are those of requests; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeVar

from bascule.client.admin import Admin
from bascule.client.tables.replica.conflicts import (
    Conflict,
    LocalWrite,
    RemoteState,
    Resolver,
    checked_choice,
    checked_value,
)
from bascule.client.tables.replica.copy_rows import CopyState, PendingWrite, RefusedWrite
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import (
    BasculeError,
    Broken,
    ConfigError,
    CopyDamaged,
    Indeterminate,
    InvalidKey,
    RequestFailed,
    WrongVersion,
)
from bascule.host.api import Clock
from bascule.host.real import RealClock
from bascule.table_results import PageAsked
from bascule.wire.tables.conditions import VERSION_MAX
from bascule.wire.tables.sync_pages import SyncPage

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_ROWS: Final = 10_000
PAGE_BYTES: Final = 1 << 20
PAGES_AHEAD: Final = 2
"""Pages that have come and are not applied yet."""
WAIT_SECONDS: Final = 20.0
"""A node answers after that if nothing changes."""
BEHIND_SECONDS: Final = 5.0
"""For a node that has nothing new, though more is committed; then another one is asked."""
RETRY_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
OFFERED_AT_ONCE: Final = 16
FAILED_AT_ONCE: Final = 128
"""After so many failures the offering pauses. It goes on behind them."""
OFFER_SECONDS: Final = 1.0
"""Another process may have queued writes; also until refusals that pass are tried again."""
REMEMBERED: Final = 0.5
"""The part of the table's time for removals that a write without a base may be old. The copy's
clock and that of the leader may run differently."""
CATCH_UP_SECONDS: Final = 30.0
"""For the record that a write was refused for."""
NEVER_TAKEN: Final = frozenset({"limit_exceeded", "malformed_request", "invalid_config"})
"""Refusals that a repetition does not change. A node of an earlier release answers with others to
what it does not know."""
OFFERED_AGAIN: Final = (RequestFailed, Indeterminate)
"""Failures of one write, which is offered again. Others end the following."""


class ReplicaFollower:
    """Belongs to the event loop; the file is used on threads."""

    def __init__(
        self,
        table: str,
        file: ReplicaFile,
        admin: Admin,
        *,
        resolver: Resolver,
        on_refused: Callable[[RefusedWrite], None] | None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = RealClock() if clock is None else clock
        self._table = table
        self._file = file
        self._admin = admin
        self._resolver = resolver
        self._on_refused = on_refused
        self.state = file.state()
        self.is_connected = False
        self.is_current = False
        """Whether everything that was committed has come since the connection was made."""
        self.settled = 0
        """The position behind the writes that the table has taken; 0 after it was made anew."""
        self.received = 0
        """Keys that have come."""
        self.failure: BasculeError | None = None
        """Why it is not connected, or why writes are not taken now."""
        self.has_ended = False
        """Whether it follows no more: the copy is damaged, as `failure` says."""
        self._offered = 0
        """The number of the last write that was offered; 0: begin with the oldest."""
        self.offers = asyncio.Event()
        """Set when there are writes to offer."""
        self.advanced = asyncio.Condition()
        """Notified when anything here has changed."""
        self.advances = 0
        """How often that was so."""

    async def run(self) -> None:
        """Follow until it is cancelled, or the copy turns out to be damaged."""
        failures = 0
        while True:
            asked = self._admin.asked_server
            try:
                await self._follow()
            except Exception as error:  # boundary: a bug must not end it in silence
                self._note_failure(error)
            failures = 0 if self.is_connected else failures + 1
            self.is_connected = self.is_current = False
            self.has_ended = isinstance(self.failure, CopyDamaged)
            await self._notify()
            if self.has_ended:
                return
            self._admin.turn_from(asked)
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])

    def _note_failure(self, error: Exception) -> None:
        before = self.failure
        if isinstance(error, BasculeError):
            self.failure = error
        else:
            log.error("following %s has failed; it begins again", self._table, exc_info=error)
            self.failure = Broken(f"following {self._table} has failed: {error!r}")
        if str(before) != str(self.failure):
            log.warning("the copy of %s does not follow: %s", self._table, self.failure)

    async def wait(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Whether that was so within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self.advanced:
                await self.advanced.wait_for(reached)
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        """Follow until something fails. Raises: BasculeError."""
        pages: asyncio.Queue[SyncPage] = asyncio.Queue(PAGES_AHEAD)
        parts = self._fetch(pages), self._apply(pages), self._offer()
        # A TaskGroup that ends for an error drops a cancellation that comes meanwhile.
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            if task.cancelled():
                raise Broken(f"following {self._table} was cancelled from within")
            task.result()

    async def _fetch(self, pages: asyncio.Queue[SyncPage]) -> None:
        """Ask for pages. The next one is asked for while those before are applied.

        Raises: BasculeError; Indeterminate where the node's replica stays behind its log.
        """
        state, wait, is_behind = self.state, 0.0, False
        while True:
            asked = PageAsked(
                table=state.table,
                since=state.position,
                epoch=state.epoch,
                after=state.after,
                rows_max=PAGE_ROWS,
                bytes_max=PAGE_BYTES,
                wait=wait,
                follower=self._file.replica_id,
                applied=self.state.position,
                seen=state.seen,
                seen_epoch=state.seen_epoch,
            )
            page = await self._admin.table_changes(self._table, asked)
            await pages.put(page)
            was_behind, is_behind = is_behind, _stands_still(state, page)
            if is_behind and was_behind:
                raise Indeterminate(
                    f"the node's replica of the table {self._table} stays at offset "
                    f"{page.position}, though {page.high_watermark} is committed"
                )
            state = state.behind(page)
            if is_behind:
                wait = BEHIND_SECONDS
            else:
                wait = WAIT_SECONDS if page.is_current else 0.0

    async def _apply(self, pages: asyncio.Queue[SyncPage]) -> None:
        while True:
            await _to_its_end(self._apply_page(await pages.get()))

    async def _apply_page(self, page: SyncPage) -> None:
        before = self.state
        self.state = await self._on_file(lambda: self._file.apply(page))
        if before.table != page.table or self.state.position != page.position:
            self.settled = 0
        if self.state.position != page.position:
            raise Indeterminate(f"the table {self._table} has lost a write that it had taken")
        if before.table not in (None, page.table):
            log.warning("the table %s is another one now; its copy begins anew", self._table)
        if not self.is_connected:
            self.is_connected, self.failure = True, None
        self.received += len(page.rows)
        self.is_current = page.is_current or (self.is_current and not _stands_still(before, page))
        await self._notify()

    async def _notify(self) -> None:
        self.advances += 1
        async with self.advanced:
            self.advanced.notify_all()

    # Writes that were made here

    async def _offer(self) -> None:
        """Offer what was written here, as soon as the copy has what others have written."""
        await self.wait(lambda: self.is_current, None)
        while True:
            self.offers.clear()
            try:
                await self._offer_all()
            except OFFERED_AGAIN as error:
                self._note_failure(error)
                await self._notify()
                await asyncio.sleep(OFFER_SECONDS)
                continue
            self.failure = None
            await self._notify()
            try:
                async with asyncio.timeout(OFFER_SECONDS):
                    await self.offers.wait()
            except TimeoutError:
                pass

    async def _offer_all(self) -> None:
        """Return once there are none. Those that fail hold up no others: each key has one write.

        Raises: BasculeError, the first one, once `FAILED_AT_ONCE` have failed, or all others were
        offered; the next call goes on there.
        """
        failures: list[BaseException] = []
        while len(failures) < FAILED_AT_ONCE:
            behind = self._offered
            pending = partial(self._file.pending, OFFERED_AT_ONCE, behind=behind)
            writes = await self._on_file(pending)
            self._offered = writes[-1].number if writes else 0
            if not writes and (failures or not behind):
                break
            ended = await self._offer_together(writes)
            failures += [error for error in ended if error is not None]
            if lasting := [each for each in failures if not isinstance(each, OFFERED_AGAIN)]:
                raise lasting[0]
        for error in failures:
            raise error

    async def _offer_together(self, writes: list[PendingWrite]) -> list[BaseException | None]:
        """How each has ended."""
        writes = [each for each in writes if await self._can_be_sent(each)]
        sure = [each for each in writes if not each.is_unsure]
        await self._on_file(partial(self._file.note_sent, sure))
        return await asyncio.gather(*map(self._offer_one, writes), return_exceptions=True)

    async def _can_be_sent(self, pending: PendingWrite) -> bool:
        """False where it was refused instead: earlier releases have kept values that are no bytes,
        and content types that no header can have."""
        try:
            checked_value(pending.write.value, pending.write.content_type)
        except (TypeError, ConfigError) as error:
            await self._refuse(pending.number, str(error))
            return False
        return True

    async def _offer_one(self, pending: PendingWrite) -> None:
        """Raises: BasculeError; it is to be offered again then."""
        number, write = pending.number, pending.write
        if pending.base is None and write.value is None:
            if pending.may_have_set:
                await self._wait_present(write.key)
            await self._on_conflict(pending, None)
            return
        table = self.state.table
        try:
            if pending.base is None:
                version = await self._send_first(pending)
            else:
                version = await self._send(pending, pending.base)
        except WrongVersion as error:
            await self._wait_position(-1 if error.found is None else error.found)
            await self._on_conflict(pending, error.found)
        except (InvalidKey, ConfigError, RequestFailed) as error:
            if isinstance(error, RequestFailed) and error.code not in NEVER_TAKEN:
                raise
            await self._refuse(number, str(error))
        else:
            await _to_its_end(self._settle(number, write, version, table))

    async def _settle(
        self, number: int, write: LocalWrite, version: int, table: bytes | None
    ) -> None:
        await self._on_file(lambda: self._file.settle(number, write, version, table=table))
        if table == self.state.table:
            self.settled = max(self.settled, version + 1)

    async def _send(self, pending: PendingWrite, if_version: int | None) -> int:
        """The version. Raises: BasculeError."""
        write = pending.write
        return await self._admin.write_key(
            self._table,
            write.key,
            write.value,
            if_version=if_version,
            message_id=pending.message_id(self._file.replica_id),
            content_type=write.content_type,
        )

    async def _send_first(self, pending: PendingWrite) -> int:
        """Send a write of a key that had no value. The table compares no more than that it has
        none: here is compared that others have not set it and removed it since.

        Raises: WrongVersion also where they have, or nobody can say; BasculeError.
        """
        key, found = pending.write.key, None
        if pending.is_unsure:
            # What the leader knows: the version of the first sending, or that of the last record.
            try:
                return await self._send(pending, VERSION_MAX)
            except WrongVersion as error:
                found = error.found
            if found is not None:
                await self._wait_position(found)
        theirs = (await self._on_file(lambda: self._file.known(key))).remote
        present = max((each for each in (theirs.version, found) if each is not None), default=None)
        if present is None:
            if not await self._is_untouched(pending):
                raise WrongVersion(self._table, key, expected=None, found=None)
        elif theirs.value is not None or present >= (pending.since or 0):
            raise WrongVersion(self._table, key, expected=None, found=present)
        if pending.is_unsure:
            await self._on_file(lambda: self._file.note_sent([pending]))
        if present is not None:
            try:
                return await self._send(pending, present)
            except WrongVersion as error:
                if error.found is not None or not await self._is_untouched(pending):
                    raise  # else the table has forgotten the removal
        return await self._send(pending, None)

    async def _is_untouched(self, pending: PendingWrite) -> bool:
        """Whether nobody has written a key since, of which neither pages nor the leader, if it was
        asked, know a record: one of them would. Raises: BasculeError."""
        if pending.since:
            return pending.since >= self.state.oldest  # no page has what was purged
        if pending.since == 0 and not pending.sent:
            return True  # the first write of a copy that had nothing: it replaces what there is
        config = (await self._admin.stream(self._table)).definition.config
        age_ms = self._clock.now_ms() - pending.write.timestamp
        return 0 <= age_ms < REMEMBERED * config.tombstone_retention_ms

    async def _wait_present(self, key: bytes) -> None:
        """Return once the copy has what the leader has of a key: a write whose answer was lost may
        be there, and nowhere else yet. Raises: BasculeError where nobody can say."""
        read = {"consistency": "linearizable"}
        found = await self._admin.table_values(self._table, [key], consistency=read)
        await self._wait_position(found.position - 1)

    async def _wait_position(self, version: int) -> None:
        """Return once the copy has a record. Raises: Indeterminate."""
        if not await self.wait(lambda: self.state.position > version, CATCH_UP_SECONDS):
            raise Indeterminate(f"the copy of {self._table} has not got offset {version} yet")

    async def _on_conflict(self, pending: PendingWrite, found: int | None) -> None:
        """The key is not as it was when the write was made, as far as the copy knows now; `found`
        is the version of its last record that the leader has said."""
        number, ours = pending.number, pending.write
        table = self.state.table
        known = await self._on_file(lambda: self._file.known(ours.key))
        theirs = known.remote
        if theirs.version is None:
            theirs = theirs._replace(version=found)
        is_same_type = ours.value is None or theirs.content_type == ours.content_type
        if theirs.value == ours.value and is_same_type:  # also: the answer to the write was lost
            version = theirs.version
            await self._on_file(lambda: self._file.settle(number, ours, version, table=table))
            return
        chosen: LocalWrite | None = ours
        if theirs.version is None or not pending.may_have_made(theirs.value):
            conflict = Conflict(self._table, ours, theirs)
            try:
                choice = self._resolver(conflict)
                chosen = checked_choice(await choice if inspect.isawaitable(choice) else choice)
            except Exception as error:  # boundary: the function is the user's
                log.exception("the function for conflicts has failed")
                await self._refuse(number, f"the function for conflicts has failed: {error!r}")
                return
        if chosen is None:
            await self._refuse(number, _difference(pending, theirs))
            return
        write = chosen
        await self._on_file(lambda: self._file.rebase(number, write, known))

    async def _refuse(self, number: int, reason: str) -> None:
        await _to_its_end(self._refuse_and_say(number, reason))

    async def _refuse_and_say(self, number: int, reason: str) -> None:
        refused = await self._on_file(lambda: self._file.refuse(number, reason))
        if refused is None:
            return
        log.warning("a write on the copy of %s was refused: %s", self._table, reason)
        if self._on_refused is not None:
            self._on_refused(refused)

    async def _on_file(self, use: Callable[[], T]) -> T:
        return await _to_its_end(asyncio.to_thread(use))


async def _to_its_end(work: Coroutine[object, object, T]) -> T:
    """Do something whose effects belong together, in the file and here. A cancellation that comes
    meanwhile is raised once it has ended: a thread goes on, whoever waits for it."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        raise failure from cancelled
    raise cancelled


def _stands_still(state: CopyState, page: SyncPage) -> bool:
    """Whether a page is where the copy was, and more is committed."""
    return (
        not page.is_current
        and not page.is_full
        and (page.table, page.position) == (state.table, state.position)
    )


def _difference(pending: PendingWrite, theirs: RemoteState) -> str:
    """Why a write is refused."""
    found = "none" if theirs.version is None else f"version {theirs.version}"
    if pending.base is not None:
        return f"others have written: expected version {pending.base}, found {found}"
    if theirs.value is not None:
        return f"others have written: expected no value, found {found}"
    if theirs.version is not None:
        return f"others have written: expected no record since, found a removal, {found}"
    return "others may have written: the table may have forgotten that the key was removed since"
