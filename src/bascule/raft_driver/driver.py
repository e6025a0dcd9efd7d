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
from collections.abc import Mapping, Sequence

import msgspec

from bascule.errors import BasculeError, Broken, Closed, ConfigError, RemoteProtocolError
from bascule.host.api import Clock, Random
from bascule.host.real import RealClock, RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Apply, ApplyDone, WriteDone
from bascule.raft.membership import Members
from bascule.raft.multi.bundle import Bundle
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState, RaftStore
from bascule.raft_driver.data_directory import DataDirectory
from bascule.raft_driver.group import RaftGroup
from bascule.raft_driver.peer_link import Address
from bascule.raft_driver.sqlite_store import DatabaseStatistics
from bascule.raft_driver.state_machine import StateMachine
from bascule.raft_driver.ticker import Ticker
from bascule.raft_driver.transport import QUEUE_BYTES_MAX, PeerTransport, TransportStatistics
from bascule.raft_driver.write_thread import STORE_ERRORS, WriteJob, WriteStatistics, WriteThread

log = logging.getLogger("bascule.raft_driver")


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
    """What a driver has done since it was made."""

    groups: int
    ready_calls: int
    """Calls of `MultiRaft.ready`."""
    ticks: int
    entries_applied: int
    answers: int
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
    ) -> None:
        """Call this on the loop that the driver runs on. `config` is that of every group."""
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
            cluster=settings.cluster,
            random=self._random,
            on_bundle=self._on_bundle,
            queue_bytes_max=settings.queue_bytes_max,
            server_tls=server_tls,
            client_tls=client_tls,
        )
        self._thread = WriteThread(
            self._loop, self._clock, on_done=self._on_written, on_failed=self._on_failed
        )
        self._groups: dict[int, RaftGroup] = {}
        self._applies: deque[tuple[int, Apply]] = deque()
        self._directory: DataDirectory | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticker = Ticker(self._clock, settings.tick_ms, self._on_ticks)
        self._ready_scheduled = False
        self._snapshots: set[asyncio.Future[tuple[bytes, ...]]] = set()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """Completed with the cause when the store or the core failed; the node is stopped then."""
        self._ready_calls = self._entries_applied = self._answers = 0

    # -- start, groups, stop ------------------------------------------------------------------

    async def start(
        self,
        *,
        directory: str | None = None,
        listen: Address | None = None,
        peers: Mapping[int, Address] | None = None,
    ) -> Address | None:
        """Open the database in `directory` (created if missing), listen, and connect to the peers.
        Returns the address of the listener.

        Raises: DataDirectoryInUse, CorruptData, OSError; nothing is left open then.
        """
        self._thread.start()
        try:
            if directory is not None:
                await self._thread.run(lambda: self._open(directory))
            address = None if listen is None else await self.transport.listen(*listen)
        except BaseException:
            await self.stop()
            raise
        self.transport.set_peers(peers or {})
        self._ticker.restart()
        self._on_timer()
        return address

    def _open(self, directory: str) -> None:
        """Runs on the write thread."""
        self._directory = DataDirectory(directory, node_id=self.node_id)

    async def open_group(
        self,
        number: int,
        machine: StateMachine,
        *,
        initial_members: Members | None = None,
        store: RaftStore | None = None,
    ) -> RaftGroup:
        """Join a group. `machine` is empty at first; it gets the newest snapshot, and every later
        entry when that is committed.

        If the store is new, the group begins with `initial_members`, which are the same on all of
        them; without them, this node waits until the group's leader adds it. Without `store`, the
        group is stored in the directory's database.

        Raises: CorruptData, OSError, Broken, ConfigError.
        """
        if number in self._groups:
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

        kept, restored = await self._thread.run(load)
        node = RaftNode(self.node_id, self.config, restored, self._random)
        group = RaftGroup(
            number,
            node,
            kept,
            machine,
            multi_raft=self._multi_raft,
            ticker=self._ticker,
            on_request=self._schedule_ready,
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
        if self._timer is not None:
            self._timer.cancel()
        for group in list(self._groups.values()):
            self._end_group(group, Closed("the node is stopping"))
        await self.transport.close()
        if self._snapshots:
            await asyncio.wait(list(self._snapshots))
        await self._thread.stop()
        if self._directory is not None:
            try:
                await self._loop.run_in_executor(None, self._directory.close)
            except STORE_ERRORS as error:
                log.warning("raft store not closed cleanly", extra={"error": str(error)})

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
        self._multi_raft.tick(ticks)
        self._schedule_ready()

    def _on_bundle(self, bundle: Bundle) -> None:
        """Raises: RemoteProtocolError; the transport then closes the peer's connection."""
        self._schedule_ready()
        try:
            self._multi_raft.receive(bundle)
        except RemoteProtocolError:
            raise
        except BaseException as error:
            self._on_core_failed(error)
            raise
        for number, _ in bundle.messages:
            if (group := self._groups.get(number)) is not None:
                group.notify_leader()

    def _on_written(self, jobs: Sequence[WriteJob]) -> None:
        multi_raft, groups = self._multi_raft, self._groups
        for number, _, write in jobs:
            if number in groups:
                multi_raft.advance(number, WriteDone(write.number), write.then_send)
        self._schedule_ready()

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
            self._applies.extend(ready.applies)
        if self._applies:
            # Scheduled before the applies, so that an error in one state machine delays no other.
            self._schedule_ready()
            while self._applies:
                number, apply = self._applies.popleft()
                if (group := groups.get(number)) is not None:
                    self._apply(group, apply)

    def _apply(self, group: RaftGroup, apply: Apply) -> None:
        try:
            group.notify_leader()
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
            return
        drained = self._loop.run_in_executor(None, tuple, chunks)
        self._snapshots.add(drained)
        drained.add_done_callback(lambda done: self._on_drained(group, apply.last, done))

    def _on_drained(
        self, group: RaftGroup, last: int, done: asyncio.Future[tuple[bytes, ...]]
    ) -> None:
        self._snapshots.discard(done)
        error = done.exception()
        if error is not None:
            self._on_machine_error(group, error)
        elif group.number in self._groups:
            self._multi_raft.advance(group.number, ApplyDone(last, done.result()))
            self._schedule_ready()

    def _on_machine_error(self, group: RaftGroup, error: BaseException) -> None:
        log.error(
            "raft state machine failed; group stopped on this node",
            extra={"group": group.number, "error": f"{type(error).__name__}: {error}"},
        )
        self._end_group(group, Broken(f"the state machine of group {group.number} failed: {error}"))

    def _end_group(self, group: RaftGroup, error: BasculeError) -> None:
        assert isinstance(error, Broken | Closed)
        del self._groups[group.number]
        self._multi_raft.remove(group.number)
        group.end(error)
