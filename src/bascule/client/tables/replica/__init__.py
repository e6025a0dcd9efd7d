"""Copies of tables outside the cluster, on machines that are only sometimes connected.

local_replica   `LocalReplica`: reads, writes and waits; `open_replica`
follower        asks a node for pages of changes, and offers the writes that were made here
conflicts       what becomes of a write when others have changed the key
replica_file    the SQLite file: rows, their position, writes to be offered and refused ones
copy_rows       what is in it
statements      its SQL
recent_changes  which keys have changed last, in the file
watching        watchers, which read that
rescue          a copy begun anew in the place of a damaged one
blocking        `SyncLocalReplica`

A copy is made of pages (`bascule.tables.oplog.changes` says how they are read), each applied in one
transaction with the position behind it. So it goes on at any node, after any crash, with what it
has. At most three pages are on the way: one that a node sends, and two that wait to be applied.

A write that is made here is kept with the version that it replaces, and offered once the copy has
what others have written: a conditional write with a message id, so that one whose answer was lost
is not stored twice. There is one for each key; a later one takes the place of the one before.
Writes of different keys are offered together, in no order.
"""

from __future__ import annotations

from bascule.client.tables.replica.blocking import SyncLocalReplica, open_replica_sync
from bascule.client.tables.replica.conflicts import Conflict, Conflicts, LocalWrite, RemoteState
from bascule.client.tables.replica.copy_rows import RefusedWrite, ReplicaEntry, ReplicaValues
from bascule.client.tables.replica.local_replica import (
    LocalReplica,
    ReplicaStatus,
    open_replica,
)

__all__ = [
    "Conflict",
    "Conflicts",
    "LocalReplica",
    "LocalWrite",
    "RefusedWrite",
    "RemoteState",
    "ReplicaEntry",
    "ReplicaStatus",
    "ReplicaValues",
    "SyncLocalReplica",
    "open_replica",
    "open_replica_sync",
]
