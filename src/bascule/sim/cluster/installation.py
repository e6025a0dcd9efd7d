"""Puts the simulated world in the place of the real one, in the modules of the production code.

A module finds a simulated class under the name that it has imported: `threading`, `SimpleQueue`,
`RealFiles`. The production code has no switch for that, and runs as fast as without a simulator.
`tests/sim` checks that no module of a node that uses threads is missing here.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from rpds import HashTrieMap, HashTrieSet

from bascule.datastream.limits import DataStreamLimits
from bascule.metadata.image import Image
from bascule.metadata.image_index import ImageIndex
from bascule.sim.cluster.machine import ProcessClock, ProcessRandom, process_files
from bascule.sim.cluster.stand_ins import (
    SilentListener,
    WatchedPartition,
    WatchedRequests,
    no_app,
)
from bascule.sim.cluster.tables.databases import SqliteModule
from bascule.sim.cluster.world import nats
from bascule.sim.cluster.world.disk import RaftDirectory
from bascule.sim.cluster.world.heartbeats import SimHeartbeats
from bascule.sim.cluster.world.loop import ClusterLoop
from bascule.sim.cluster.world.ordered import OrderedKeys, OrderedMap, OrderedSet
from bascule.sim.cluster.world.sockets import SelectModule, SocketModule, bind
from bascule.sim.cluster.world.streaming import OsModule, SelectorsModule, StreamSocketModule
from bascule.sim.cluster.world.threads import SimpleQueue, Threading, ThreadPool

THREADING: Final = (
    "bascule.controller.held_partitions",
    "bascule.datastream.disk.paced_thread",
    "bascule.datastream.disk.sums_builds",
    "bascule.datastream.disk.whole_reads",
    "bascule.datastream.transport.reactor",
    "bascule.ingest.ingest_buffer",
    "bascule.ingest.nats_dialer",
    "bascule.ingest.nats_source",
    "bascule.raft_driver.write_thread",
    "bascule.replica.disk_reserve",
    "bascule.replica.follower.fetcher",
    "bascule.replica.follower.followed_partition",
    "bascule.replica.follower.receive_buffers",
    "bascule.replica.follower.replicator",
    "bascule.replica.log_writer",
    "bascule.replica.maintenance.cleaner",
    "bascule.replica.opening",
    "bascule.replica.partition",
    "bascule.replica.roles.told_start",
    "bascule.replica.scrub.scrubber",
    "bascule.replica.roles.commitment",
    "bascule.replica.syncing.log_syncer",
    "bascule.replica.syncing.sync_state",
    "bascule.replica.syncing.work_queue",
    "bascule.tables.oplog.changes",
    "bascule.tables.table_file",
    "bascule.tables.table_replica",
)
"""Modules whose `threading` is replaced."""
QUEUES: Final = ("bascule.raft_driver.write_thread", "bascule.replica.log_writer")
"""Modules whose `SimpleQueue` is replaced."""
POOLS: Final = (
    "bascule.controller.reconciler",
    "bascule.datastream.disk.paced_thread",
    "bascule.datastream.disk.whole_reads",
    "bascule.datastream.service",
    "bascule.listening.listener",
    "bascule.peer.replica_fetch",
    "bascule.replica.maintenance.cleaner",
    "bascule.replica.scrub.scrubber",
)
"""Modules whose `ThreadPoolExecutor` is replaced."""
NOT_RUN: Final = ("bascule.heartbeats.heartbeat_thread",)
"""Modules with threads that no simulated node uses."""
SETS: Final = (
    "bascule.controller.cluster.healing.accused",
    "bascule.controller.cluster.healing.scrubs",
    "bascule.controller.cluster.image_follower",
    "bascule.controller.cluster.isr_keeper",
    "bascule.controller.cluster.metadata_group.metadata_group",
    "bascule.controller.handover",
    "bascule.controller.metadata_machine",
    "bascule.controller.plan",
    "bascule.controller.reconciler",
    "bascule.datastream.service",
    "bascule.peer.listener",
    "bascule.peer.replica_fetch",
    "bascule.peer.replica_session",
    "bascule.raft_driver.driver",
    "bascule.raft_driver.transport",
    "bascule.replica.maintenance.retention",
    "bascule.replica.partition",
    "bascule.replica.purgatory",
    "bascule.storage.payloads.payload_files",
    "bascule.tables.tables",
    "bascule.tables.watching.watches",
)
"""Modules whose sets are iterated: these keep an order."""
BLOCK_BYTES: Final = 16 << 10
"""Of payloads, which are small here: many have several blocks."""
UNLINKED_MS: Final = 10_000
"""Longer than the record of a payload is asked for."""
PAYLOADS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("bascule.controller.cluster.payloads.linking", "ATTEMPT_SECONDS_MAX", 4.0),
    ("bascule.controller.cluster.payloads.linking", "LINK_SECONDS_MAX", 8.0),
    ("bascule.datastream.service", "DETACHED_SECONDS_MAX", 3.0),
    (
        "bascule.controller.cluster.payloads.cluster_payloads", "DataStreamLimits",
        partial(DataStreamLimits, window_bytes=64 << 10, unlinked_ms_max=UNLINKED_MS),
    ),
    ("bascule.datastream.service", "SWEEP_SECONDS", 1.0),
    ("bascule.datastream.disk.pacing", "INCREASE", 128 << 10),
    ("bascule.datastream.disk.pacing", "STEP_BYTES", 12 << 10),
    ("bascule.datastream.disk.pacing", "STEP_BYTES_MIN", 4 << 10),
    ("bascule.datastream.disk.whole_reads", "SLICE_BLOCKS", 2),
    ("bascule.datastream.disk.write_back", "STEP_BYTES", 12 << 10),
    ("bascule.datastream.disk.pacing", "UNWRITTEN_BYTES_MAX", 64 << 10),
    ("bascule.datastream.disk.pacing", "UNWRITTEN_BYTES_MIN", 24 << 10),
    ("bascule.datastream.fetching", "ROOM_BYTES", 32 << 10),
    ("bascule.datastream.session", "ROOM_BYTES", 32 << 10),
    ("bascule.datastream.session", "SYNC_BYTES", 64 << 10),
    ("bascule.datastream.transport.connection", "SENDFILE_BYTES", 12 << 10),
    ("bascule.datastream.transport.connection", "os", OsModule),
    ("bascule.datastream.transport.connection", "socket", StreamSocketModule()),
    ("bascule.datastream.transport.reactor", "BUFFER_BYTES", 8 << 10),
    ("bascule.datastream.transport.reactor", "selectors", SelectorsModule),
    ("bascule.datastream.transport.reactor", "socket", StreamSocketModule()),
    ("bascule.payload_connection.connection", "socket", StreamSocketModule()),
    ("bascule.storage.payloads.payload_log", "COMPACTED_SECONDS", 2),
    ("bascule.storage.payloads.block_sums", "BLOCK_BYTES", BLOCK_BYTES),
    ("bascule.storage.payloads.payload_files", "BLOCK_BYTES", BLOCK_BYTES),
    ("bascule.storage.payloads.payload_files", "READ_BYTES", BLOCK_BYTES),
    ("bascule.storage.payloads.verified_file", "BLOCK_BYTES", BLOCK_BYTES),
)  # fmt: skip
"""Data streaming, with sizes and times that fit a run."""
OTHERS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("bascule.controller.metadata_machine", "RememberedRequests", WatchedRequests),
    (
        "bascule.host.lasting_objects",
        "gc",
        SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None),
    ),
    ("bascule.ingest.ingest_buffer", "SLAB_BYTES", 64 << 10),
    ("bascule.ingest.chunk_reader", "RECEIVE_BYTES", 16 << 10),
    ("bascule.ingest.chunk_reader", "MESSAGES_MAX", 1 << 10),
    ("bascule.ingest.sequencer", "MESSAGES_MAX", 1 << 10),
    ("bascule.ingest.nats_dialer", "connect", nats.connect),
    ("bascule.listening.listener", "bind", bind),
    ("bascule.listening.sending", "SMALL_BYTES", 1 << 40),
    ("bascule.log_connection", "select", SelectModule),
    ("bascule.log_connection", "socket", SocketModule()),
    ("bascule.metadata.image", "HashTrieMap", OrderedMap),
    ("bascule.metadata.image_index", "HashTrieMap", OrderedMap),
    ("bascule.metadata.image_index", "HashTrieSet", OrderedKeys),
    ("bascule.node.cluster", "PeerHeartbeats", SimHeartbeats),
    ("bascule.node.node", "HttpListener", SilentListener),
    ("bascule.node.node", "RealClock", ProcessClock),
    ("bascule.node.node", "RealFiles", process_files),
    ("bascule.node.node", "RealRandom", ProcessRandom),
    ("bascule.node.node", "create_app", no_app),
    ("bascule.raft_driver.driver", "DataDirectory", RaftDirectory),
    ("bascule.replica.maintenance.cleaner", "TICK_SECONDS", 0.7),
    ("bascule.replica.maintenance.retention", "TICK_SECONDS", 0.3),
    ("bascule.replica.opening", "Partition", WatchedPartition),
    ("bascule.tables.ageing.forgetting", "LOOK_SECONDS", 0.4),
    ("bascule.tables.ageing.forgetting", "ROWS_AT_ONCE", 4),
    ("bascule.tables.ageing.forgotten", "WALKED_ROWS", 10),
    ("bascule.tables.table_file", "sqlite3", SqliteModule),
    ("bascule.tables.watching.watcher", "CHANGES_MAX", 20),
)
FACTORIES: Final = {HashTrieMap: OrderedMap, HashTrieSet: OrderedKeys}


def replacements() -> list[tuple[str, str, Any]]:
    """Module, name and what stands there during a simulation."""
    found: list[tuple[str, str, Any]] = [(module, "threading", Threading) for module in THREADING]
    found += [(module, "SimpleQueue", SimpleQueue) for module in QUEUES]
    found += [(module, "ThreadPoolExecutor", ThreadPool) for module in POOLS]
    found += [(module, "set", OrderedSet) for module in SETS]
    return [*found, *OTHERS, *PAYLOADS]


@contextmanager
def installed(loop: ClusterLoop) -> Iterator[None]:
    """The simulated world is in place, and `loop` runs, while the context is open."""
    missing = object()
    before: list[tuple[Any, str, Any]] = []
    cells = [
        cell
        for kind in (Image, ImageIndex)
        for cell in kind.__init__.__closure__ or ()
        if cell.cell_contents in FACTORIES
    ]
    try:
        for module, name, value in replacements():
            owner = importlib.import_module(module)
            before.append((owner, name, vars(owner).get(name, missing)))
            setattr(owner, name, value)
        kept = [(cell, cell.cell_contents) for cell in cells]
        for cell in cells:
            cell.cell_contents = FACTORIES[cell.cell_contents]
        asyncio._set_running_loop(loop)
        yield
    finally:
        asyncio._set_running_loop(None)
        for cell, value in kept:
            cell.cell_contents = value
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
