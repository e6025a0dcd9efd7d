"""`RaftDriver`: all Raft groups of a process on one asyncio loop, one disk thread and one listener.

```
requests    --> nodes       --+                             +--> transport      --> peers
bundles     --> MultiRaft   --+--> MultiRaft.ready, once  --+--> write thread   --> completions
ticks       --> MultiRaft   --+    per turn of the loop     +--> state machines --> completions
completions --> MultiRaft   --+                             +--> futures of the requests
```

An input only schedules a call of `ready`, which handles all inputs of one turn of the loop. A
thousand proposals in a turn are one write and one bundle to each peer, and the entries are sent to
the peers while the disk writes them. The loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    ConfigError,
    LostEntries,
    RemoteProtocolError,
)
from bascule.host.api import Clock, Random
from bascule.host.real import RealClock, RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Apply, ApplyDone, Completion, RaftState, SnapshotTaken, WriteDone
from bascule.raft.membership import Members
from bascule.raft.messages import RaftSnapshot
from bascule.raft.multi.bundle import Bundle
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState, RaftStore
from bascule.raft_driver.data_directory import DataDirectory
from bascule.raft_driver.group import RaftGroup
from bascule.raft_driver.observer import GroupObserver
from bascule.raft_driver.peer_link import Address
from bascule.raft_driver.sqlite_store import NOTHING_KNOWN, DatabaseStatistics, KnownCommits
from bascule.raft_driver.state_machine import FrozenChunks, StateMachine
from bascule.raft_driver.ticker import Ticker
from bascule.raft_driver.transport import QUEUE_BYTES_MAX, PeerTransport, TransportStatistics
from bascule.raft_driver.write_thread import STORE_ERRORS, WriteJob, WriteStatistics, WriteThread

log = logging.getLogger("bascule.raft_driver")

T = TypeVar("T")


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node; `cluster` and `tick_ms` are the same on all nodes of a cluster."""

    cluster: str
    """Name of the cluster; nodes of another one are refused."""
    tick_ms: int = 50
    """Length of a tick of `RaftConfig`; 10 election ticks are a timeout of 500 to 1,000 ms."""
    queue_bytes_max: int = QUEUE_BYTES_MAX
    """Bytes queued for one peer; bundles beyond are dropped and counted."""

    def __post_init__(self) -> None:
        if self.tick_ms < 1:
            raise ConfigError(f"tick_ms is {self.tick_ms}, expected at least 1")


class DriverStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver has done since its creation."""

    groups: int
    ready_calls: int
    """Calls of `MultiRaft.ready`."""
    ticks: int
    entries_applied: int
    answers: int
    messages_refused: int
    """Messages of one group that violate the protocol; they were dropped."""
    requests_waiting: int
    store: WriteStatistics
    database: DatabaseStatistics | None
    """Of the directory's database, if there is one. Its syncs include those of checkpoints."""
    transport: TransportStatistics


class RaftDriver:
    """Runs this node's part of any number of groups. Use it on one event loop only."""

    def __init__(
        self,
        node_id: int,
        settings: DriverSettings,
        *,
        config: RaftConfig | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        before_write: Callable[[], None] | None = None,
        identity: ClusterIdentity | None = None,
    ) -> None:
        """Call this on the loop that the driver runs on. `config` is that of every group that is
        opened without one; its `heartbeat_ticks` and `election_ticks` are those of hibernation.
        `before_write` is called on the disk thread before writes; see `WriteThread`.
        `identity` says which cluster this is beyond its name, which is that of `settings`."""
        if node_id < 1:
            raise ConfigError(f"node id is {node_id}, expected at least 1")
        self.node_id = node_id
        self.settings = settings
        self.config = config or RaftConfig()
        self._clock = clock or RealClock()
        self._random = random or RealRandom()
        self._loop = asyncio.get_running_loop()
        incarnation = int.from_bytes(self._random.bytes(8), "big") >> 2 | 1
        self._multi_raft = MultiRaft(
            node_id,
            incarnation,
            heartbeat_ticks=self.config.heartbeat_ticks,
            election_ticks=self.config.election_ticks,
        )
        self.transport = PeerTransport(
            node_id,
            incarnation,
            cluster=identity or ClusterIdentity(settings.cluster),
            settings=(("tick_ms", settings.tick_ms), *self.config.shared),
            random=self._random,
            on_bundle=self._on_bundle,
            queue_bytes_max=settings.queue_bytes_max,
            server_tls=server_tls,
            client_tls=client_tls,
        )
        self._thread = WriteThread(
            self._loop,
            self._clock,
            on_done=self._on_written,
            on_failed=self._on_failed,
            before_write=before_write,
        )
        self._groups: dict[int, RaftGroup] = {}
        self._states: deque[tuple[RaftGroup, RaftState]] = deque()
        self._applies: deque[tuple[RaftGroup, Apply]] = deque()
        self._directory: DataDirectory | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticker = Ticker(self._clock, settings.tick_ms, self._on_ticks)
        self._ready_scheduled = False
        self._is_stopping = False
        self._background: set[asyncio.Future[Any]] = set()
        """Snapshots that are being made on threads, and restores that are awaited."""
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """Completed with the cause when the store or the core failed; the node is stopped then."""
        self._ready_calls = self._entries_applied = self._answers = self._messages_refused = 0
        self._refusals: dict[tuple[int, int], str] = {}
        """(group, peer) -> why its last refused message was, so that a reason is logged once."""
        self._opening: set[int] = set()
        """Groups whose stores are being loaded."""

    # -- start, groups, stop ------------------------------------------------------------------

    async def start(
        self,
        *,
        directory: str | None = None,
        listen: Address | None = None,
        peers: Mapping[int, Address] | None = None,
        known: KnownCommits = NOTHING_KNOWN,
    ) -> Address | None:
        """Open the database in `directory` (created if missing, unless commits of it are `known`),
        listen, and connect to the peers. Returns the address of the listener.

        Raises: DataDirectoryInUse, CorruptData, OSError; nothing is left open then.
        """
        self._thread.start()
        try:
            if directory is not None:
                await self._thread.run(lambda: self._open(directory, known))
            address = None if listen is None else await self.transport.listen(*listen)
        except BaseException:
            await self.stop()
            raise
        self.transport.set_peers(peers or {})
        self._ticker.restart()
        self._on_timer()
        return address

    def _open(self, directory: str, known: KnownCommits) -> None:
        """Runs on the write thread."""
        self._directory = DataDirectory(directory, node_id=self.node_id, known=known)

    @property
    def commits(self) -> int:
        """Commits of the database in the directory, which is open; see `KnownCommits`."""
        assert self._directory is not None
        return self._directory.commits

    async def open_group(
        self,
        number: int,
        machine: StateMachine,
        *,
        initial_members: Members | None = None,
        store: RaftStore | None = None,
        config: RaftConfig | None = None,
        observer: GroupObserver | None = None,
        votes_from: int = 0,
    ) -> RaftGroup:
        """Join a group. `machine` is empty at first; it gets the newest snapshot, and every later
        entry when that is committed. `observer` is told of the role and the members; the first
        state is in `RaftGroup.state`.

        `config` has the group's own settings instead of the driver's; all its members have the
        same.

        If the store is new, the group begins with `initial_members`, which are the same on all of
        them; without them, this node waits until the group's leader adds it. It votes in no
        election before its log reaches the index `votes_from`. Without `store`, the
        group is stored in the directory's database.

        Raises: CorruptData, OSError, Broken, ConfigError; Closed once the driver stops.
        """
        if number in self._groups or number in self._opening:
            raise ConfigError(f"raft group {number} is already open")

        def load() -> tuple[RaftStore, PersistentState]:
            kept = store
            if kept is None:
                assert self._directory is not None, "a group without a store needs a directory"
                kept = self._directory.store(number)
            try:
                restored = kept.load()
                if restored.initial_members is None:
                    kept.bootstrap(initial_members or Members(()))
                    restored = kept.load()
            except BaseException:
                kept.close()
                raise
            return kept, restored

        self._opening.add(number)
        try:
            kept, restored = await self._thread.run(load)
        finally:
            self._opening.discard(number)
        if self.failed.done():
            raise Broken(f"this node has failed: {self.failed.result()}")
        if self._is_stopping:
            raise Closed("the node is stopping")
        node = RaftNode(
            self.node_id, config or self.config, restored, self._random, votes_from=votes_from
        )
        group = RaftGroup(
            number,
            node,
            kept,
            machine,
            multi_raft=self._multi_raft,
            ticker=self._ticker,
            on_request=self._schedule_ready,
            observer=observer,
        )
        self._groups[number] = group
        self._multi_raft.add(number, node)
        log.info(
            "raft group opened",
            extra={
                "group": number,
                "term": restored.term,
                "snapshot": 0 if restored.snapshot is None else restored.snapshot.index,
                "entries": len(restored.entries),
            },
        )
        self._schedule_ready()
        return group

    async def close_group(self, number: int) -> None:
        """Leave the group. Its store is closed on return; the group can be opened again.

        Raises: KeyError where it is not open; Broken.
        """
        group = self._groups[number]
        self._end_group(group, Closed(f"raft group {number} is closed on this node"))
        await self._thread.run(group.store.close)

    async def stop(self) -> None:
        """Write everything that is queued, and close everything."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for group in list(self._groups.values()):
            self._end_group(group, Closed("the node is stopping"))
        await self.transport.close()
        if self._background:
            await asyncio.wait(list(self._background))
        await self._thread.stop()
        if self._directory is not None:
            try:
                await self._loop.run_in_executor(None, self._directory.close)
            except STORE_ERRORS as error:
                log.warning("raft store not closed cleanly", extra={"error": str(error)})

    def on_process_lost(self, node: int) -> None:
        """Another node's process does not run, by what the caller knows: it ended, or it is paused,
        or cut off. Groups that it leads elect another leader, if a majority sees it in the same
        way."""
        self._ticker.advance()
        with self._stopping_if_core_fails():
            self._multi_raft.on_process_lost(node)
        self._schedule_ready()

    def group(self, number: int) -> RaftGroup:
        """Raises: KeyError where it is not open."""
        return self._groups[number]

    def statistics(self) -> DriverStatistics:
        return DriverStatistics(
            groups=len(self._groups),
            ready_calls=self._ready_calls,
            ticks=self._ticker.ticks,
            entries_applied=self._entries_applied,
            answers=self._answers,
            messages_refused=self._messages_refused,
            requests_waiting=sum(group.waiting for group in self._groups.values()),
            store=self._thread.statistics(),
            database=self._directory.statistics() if self._directory is not None else None,
            transport=self.transport.statistics(),
        )

    # -- input --------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self._ticker.advance()
        self._timer = self._loop.call_later(self._ticker.seconds_to_next(), self._on_timer)

    def _on_ticks(self, ticks: int) -> None:
        if self.failed.done():
            return
        try:
            self._multi_raft.tick(ticks)
            has_ready = self._multi_raft.has_ready
        except BaseException as error:
            self._on_core_failed(error)
            raise
        if has_ready:
            self._schedule_ready()

    def _on_bundle(self, bundle: Bundle) -> None:
        """Raises: RemoteProtocolError; the transport then closes the peer's connection."""
        # The loop handles sockets before timers. What this node promises a leader counts from the
        # reply on, so the time of a stall has to be over before that.
        self._ticker.advance()
        self._schedule_ready()
        try:
            refused = self._multi_raft.receive(bundle)
        except RemoteProtocolError:
            raise
        except BaseException as error:
            self._on_core_failed(error)
            raise
        for number, refusal in refused:
            self._on_refused(number, bundle.source, refusal)

    def _on_refused(self, number: int, peer: int, error: RemoteProtocolError) -> None:
        """A message of one group violates the protocol. The other groups do not depend on it."""
        self._messages_refused += 1
        text = str(error)
        if isinstance(error, LostEntries):
            extra = {"group": number, "node": error.node, "error": text}
            log.error("raft log lacks entries that its node has confirmed", extra=extra)
            if error.node == self.node_id:
                self._process_ready()  # the leader is told
                self._on_failed(text)
        elif self._refusals.get((number, peer)) != text:
            self._refusals[number, peer] = text
            log.warning(
                "raft message refused", extra={"group": number, "peer": peer, "error": text}
            )

    def _on_written(self, jobs: Sequence[WriteJob]) -> None:
        multi_raft, groups = self._multi_raft, self._groups
        with self._stopping_if_core_fails():
            for number, store, write in jobs:
                # The group may have been closed, and opened again with another node.
                if (group := groups.get(number)) is not None and group.store is store:
                    multi_raft.advance(number, WriteDone(write.number), write.then_send)
        self._schedule_ready()

    @contextmanager
    def _stopping_if_core_fails(self) -> Iterator[None]:
        """Stop the node if a call of the core fails; the error is raised again."""
        try:
            yield
        except BaseException as error:
            self._on_core_failed(error)
            raise

    def _on_core_failed(self, error: BaseException) -> None:
        """A bug: an assertion of the core failed, so nothing that it returns can be relied on."""
        cause = f"{type(error).__name__}: {error}"
        log.error("raft core failed; node stopped", extra={"error": cause})
        self._on_failed(cause)

    def _on_failed(self, cause: str) -> None:
        """The store or the core failed: send nothing more, as if the machine had stopped."""
        if self._timer is not None:
            self._timer.cancel()
        for group in list(self._groups.values()):
            self._end_group(group, Broken(f"this node has failed: {cause}"))
        self.transport.set_peers({})
        if not self.failed.done():
            self.failed.set_result(cause)

    # -- output -------------------------------------------------------------------------------

    def _schedule_ready(self) -> None:
        if not self._ready_scheduled:
            self._ready_scheduled = True
            self._loop.call_soon(self._process_ready)

    def _process_ready(self) -> None:
        """Carry out what the groups request: peers and disk first, since they take longest."""
        self._ready_scheduled = False
        self._ready_calls += 1
        groups = self._groups
        try:
            ready = self._multi_raft.ready()
        except BaseException as error:
            self._on_core_failed(error)
            raise
        if ready is not None:
            send = self.transport.send
            for bundle in ready.bundles:
                send(bundle)
            if ready.writes:
                self._thread.submit(
                    [(number, groups[number].store, write) for number, write in ready.writes]
                )
                for number, _ in ready.writes:
                    groups[number].notify_leader()
            for number, answer in ready.answers:
                groups[number].on_answer(answer)
            self._answers += len(ready.answers)
            self._states.extend((groups[number], state) for number, state in ready.states)
            self._applies.extend((groups[number], apply) for number, apply in ready.applies)
        if self._states or self._applies:
            # Scheduled before these calls, so that an error of one group delays no other.
            self._schedule_ready()
            while self._states:
                group, state = self._states.popleft()
                if self._is_open(group):
                    self._report_state(group, state)
            while self._applies:
                group, apply = self._applies.popleft()
                if self._is_open(group):
                    self._apply(group, apply)

    def _report_state(self, group: RaftGroup, state: RaftState) -> None:
        try:
            group.on_state(state)
        except BaseException as error:
            self._on_machine_error(group, error)
            raise

    def _apply(self, group: RaftGroup, apply: Apply) -> None:
        try:
            if apply.restore is not None:
                self._restore(group, apply.restore)
                return
            group.apply(apply)
            self._entries_applied += len(apply.entries)
            if not apply.take_snapshot:
                self._multi_raft.advance(group.number, ApplyDone(apply.last))
                return
            chunks = group.machine.take_snapshot()
        except BaseException as error:
            self._on_machine_error(group, error)
            raise
        if isinstance(chunks, list | tuple):
            self._multi_raft.advance(group.number, ApplyDone(apply.last, tuple(chunks)))
        elif isinstance(chunks, FrozenChunks):
            self._multi_raft.advance(group.number, ApplyDone(apply.last))
            self._in_background(
                group,
                self._loop.run_in_executor(None, tuple, chunks.chunks),
                lambda found: SnapshotTaken(apply.last, found),
            )
        else:
            self._in_background(
                group,
                self._loop.run_in_executor(None, tuple, chunks),
                lambda found: ApplyDone(apply.last, found),
            )

    def _restore(self, group: RaftGroup, snapshot: RaftSnapshot) -> None:
        group.notify_leader()
        waits = group.restore(snapshot)
        if waits is None:
            self._multi_raft.advance(group.number, ApplyDone(snapshot.index))
        else:
            self._in_background(
                group, asyncio.ensure_future(waits), lambda _: ApplyDone(snapshot.index)
            )

    def _in_background(
        self, group: RaftGroup, work: asyncio.Future[T], completion: Callable[[T], Completion]
    ) -> None:
        """Pass `completion` of the result of `work` to the group, if it is still open then."""

        def on_done(done: asyncio.Future[T]) -> None:
            self._background.discard(done)
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if not self._is_open(group):
                return
            if error is not None:
                self._on_machine_error(group, error)
            else:
                with self._stopping_if_core_fails():
                    self._multi_raft.advance(group.number, completion(done.result()))
                self._schedule_ready()

        self._background.add(work)
        work.add_done_callback(on_done)

    def _on_machine_error(self, group: RaftGroup, error: BaseException) -> None:
        log.error(
            "raft state machine failed; group stopped on this node",
            extra={"group": group.number, "error": f"{type(error).__name__}: {error}"},
        )
        self._end_group(group, Broken(f"the state machine of group {group.number} failed: {error}"))

    def _is_open(self, group: RaftGroup) -> bool:
        """Whether this very group is open, and not another one that was opened later."""
        return self._groups.get(group.number) is group

    def _end_group(self, group: RaftGroup, error: BasculeError) -> None:
        assert isinstance(error, Broken | Closed)
        assert self._is_open(group), group.number
        del self._groups[group.number]
        self._multi_raft.remove(group.number)
        group.end(error)
