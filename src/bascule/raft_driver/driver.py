"""`RaftDriver`: all Raft groups of a process on one asyncio loop, one disk thread and one listener.

```
requests --> nodes --+                       +--> transport --> peers
bundles  --> hub   --+--> multi_raft.ready, once ---+--> write thread --(done)--> multi_raft.advance
ticks    --> hub   --+    a turn of the loop +--> state machines --------> multi_raft.advance
completions > hub  --+                       +--> futures of those who asked
```

Whatever happens only marks the hub as worth a look; the look comes once for all that a turn of the
loop brought. So a thousand proposals in a turn are one write, and one bundle to each peer, and the
entries are on their way to the peers while the disk writes them. The loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
from bascule.raft_driver.counts import Counts, DriverStatistics
from bascule.raft_driver.data_directory import DataDirectory
from bascule.raft_driver.group import Group
from bascule.raft_driver.peer_link import Address
from bascule.raft_driver.state_machine import StateMachine
from bascule.raft_driver.transport import QUEUE_BYTES_MAX, PeerTransport
from bascule.raft_driver.write_thread import STORE_ERRORS, Job, WriteThread

log = logging.getLogger("bascule.raft_driver")


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node; `cluster` and `tick_ms` are the same on all nodes of a cluster."""

    cluster: str
    """Peers of another cluster are refused."""
    tick_ms: int = 50
    """A tick of `RaftConfig`: with 10 election ticks a leader is missed after 500 to 1,000 ms."""
    queue_bytes_max: int = QUEUE_BYTES_MAX
    """Waiting to be sent to one peer; what is more is dropped, and counted."""

    def __post_init__(self) -> None:
        if self.tick_ms < 1:
            raise ConfigError(f"tick_ms is {self.tick_ms}, expected at least 1")


class RaftDriver:
    """Runs this node's part of any number of groups. Everything belongs to one event loop."""

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
        """To be made on the loop it is to run on. `config` is every group's."""
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
        self._groups: dict[int, Group] = {}
        self._applies: deque[tuple[int, Apply]] = deque()
        self._directory: DataDirectory | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_ns = settings.tick_ms * 1_000_000
        self._counted_ns = 0
        self._look_due = False
        self._snapshots: set[asyncio.Future[tuple[bytes, ...]]] = set()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """Done, with the cause, where store or core failed and the node takes no part any more."""
        self._counts = Counts()

    # -- life ---------------------------------------------------------------------------------

    async def start(
        self,
        *,
        directory: str | None = None,
        listen: Address | None = None,
        peers: Mapping[int, Address] | None = None,
    ) -> Address | None:
        """Open the database in `directory` (made if missing), dial the peers, take theirs; returns
        the address that is listened at.

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
        self._counted_ns = self._clock.monotonic_ns()
        self._on_timer()
        return address

    def _open(self, directory: str) -> None:
        """On the write thread."""
        self._directory = DataDirectory(directory, node_id=self.node_id)

    async def open_group(
        self,
        number: int,
        machine: StateMachine,
        *,
        initial_members: Members | None = None,
        store: RaftStore | None = None,
    ) -> Group:
        """Take part in a group. `machine` is empty: it gets the newest snapshot and every entry
        behind it as they are known to be committed.

        A group that this node has no store of yet begins with the members `founding`, the same on
        all of them; without, this node waits to be added by the group's leader. Without `store`
        it is kept in the directory's database.

        Raises: CorruptData, OSError, Broken, ConfigError.
        """
        if number in self._groups:
            raise ConfigError(f"raft group {number} is open already")

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
        group = Group(number, node, kept, machine, self)
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
        self._look_soon()
        return group

    async def close_group(self, number: int) -> None:
        """Take part in the group no more; its store is closed on return, and can be opened again.

        Raises: KeyError where it is not open; Broken.
        """
        group = self._groups[number]
        self._end(group, Closed(f"raft group {number} is closed on this node"))
        await self._thread.run(group.store.close)

    async def stop(self) -> None:
        """Return once all that was queued for the disk is there, and everything is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for group in list(self._groups.values()):
            self._end(group, Closed("the node stops"))
        await self.transport.close()
        if self._snapshots:
            await asyncio.wait(list(self._snapshots))
        await self._thread.stop()
        if self._directory is not None:
            try:
                await self._loop.run_in_executor(None, self._directory.close)
            except STORE_ERRORS as error:
                log.warning("raft store not closed cleanly", extra={"error": str(error)})

    def group(self, number: int) -> Group:
        """Raises: KeyError where it is not open."""
        return self._groups[number]

    def statistics(self) -> DriverStatistics:
        return DriverStatistics(
            groups=len(self._groups),
            looks=self._counts.looks,
            ticks=self._counts.ticks,
            entries_applied=self._counts.entries_applied,
            answers=self._counts.answers,
            requests_waiting=sum(group.waiting for group in self._groups.values()),
            store=self._thread.statistics(),
            database=self._directory.statistics() if self._directory is not None else None,
            transport=self.transport.statistics(),
        )

    # -- what the groups need ------------------------------------------------------------------

    def touch(self, number: int) -> RaftNode:
        if not self._look_due:
            self._look_soon()
        return self._multi_raft.node(number)

    def ticks_of(self, seconds: float) -> int:
        """The ticks that surely take so long."""
        return math.ceil(seconds * 1e9 / self._tick_ns) + 1

    def count_time(self) -> None:
        now = self._clock.monotonic_ns()
        ticks = (now - self._counted_ns) // self._tick_ns
        if ticks > 0:
            self._counted_ns += ticks * self._tick_ns
            self._counts.ticks += ticks
            self._multi_raft.tick(ticks)
            self._look_soon()

    def _on_timer(self) -> None:
        self.count_time()
        left_ns = self._counted_ns + self._tick_ns - self._clock.monotonic_ns()
        self._timer = self._loop.call_later(max(left_ns, 0) / 1e9, self._on_timer)

    # -- what comes in -------------------------------------------------------------------------

    def _on_bundle(self, bundle: Bundle) -> None:
        """Raises: RemoteProtocolError, which costs the peer its connection."""
        self._look_soon()
        try:
            self._multi_raft.receive(bundle)
        except RemoteProtocolError:
            raise
        except BaseException as error:
            self._on_bug(error)
            raise
        for number, _ in bundle.messages:
            if (group := self._groups.get(number)) is not None:
                group.look_for_leader()

    def _on_written(self, jobs: Sequence[Job]) -> None:
        multi_raft, groups = self._multi_raft, self._groups
        for number, _, write in jobs:
            if number in groups:
                multi_raft.advance(number, WriteDone(write.number), write.then_send)
        self._look_soon()

    def _on_bug(self, error: BaseException) -> None:
        """What a core asserts does not hold: whatever it said next could be wrong."""
        cause = f"{type(error).__name__}: {error}"
        log.error("raft core failed; this node takes no part any more", extra={"error": cause})
        self._on_failed(cause)

    def _on_failed(self, cause: str) -> None:
        """The store or the core failed: be silent, as if the machine had stopped."""
        if self._timer is not None:
            self._timer.cancel()
        for group in list(self._groups.values()):
            self._end(group, Broken(f"this node has failed: {cause}"))
        self.transport.set_peers({})
        if not self.failed.done():
            self.failed.set_result(cause)

    # -- what goes out -------------------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Carry out what the nodes want done: disk and peers first, since they take longest."""
        self._look_due = False
        self._counts.looks += 1
        groups = self._groups
        try:
            ready = self._multi_raft.ready()
        except BaseException as error:
            self._on_bug(error)
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
                    groups[number].look_for_leader()
            for number, answer in ready.answers:
                groups[number].on_answer(answer)
            self._counts.answers += len(ready.answers)
            self._applies.extend(ready.applies)
        if self._applies:
            # Also so that one state machine's error does not keep the others waiting.
            self._look_soon()
            while self._applies:
                number, apply = self._applies.popleft()
                if (group := groups.get(number)) is not None:
                    self._apply(group, apply)

    def _apply(self, group: Group, apply: Apply) -> None:
        try:
            group.look_for_leader()
            group.carry_out(apply)
            self._counts.entries_applied += len(apply.entries)
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

    def _on_drained(self, group: Group, last: int, done: asyncio.Future[tuple[bytes, ...]]) -> None:
        self._snapshots.discard(done)
        error = done.exception()
        if error is not None:
            self._on_machine_error(group, error)
        elif group.number in self._groups:
            self._multi_raft.advance(group.number, ApplyDone(last, done.result()))
            self._look_soon()

    def _on_machine_error(self, group: Group, error: BaseException) -> None:
        log.error(
            "raft state machine failed; this node takes no part in its group any more",
            extra={"group": group.number, "error": f"{type(error).__name__}: {error}"},
        )
        self._end(group, Broken(f"the state machine of group {group.number} failed: {error}"))

    def _end(self, group: Group, error: BasculeError) -> None:
        assert isinstance(error, Broken | Closed)
        del self._groups[group.number]
        self._multi_raft.remove(group.number)
        group.end(error)
