"""Raft as a library: a pure core, MicroRaft's log, and the contract of a store.

One object is one member of one group (`node.RaftNode`). It takes inputs and returns effects. It
never waits and performs no input or output::

    messages --> step      +----------+    ready --> send       at once
    time     --> tick      | RaftNode |          --> write      to a RaftStore, then its then_send
    requests --> propose,  |          |          --> apply      to the state machine
                 read ...  +----------+          --> answers    to the requests
    completed write or apply --> advance

    node        one member: messages, ticks, requests, and when a role ends
    effects     the values that `ready` returns, and a driver's duties
    messages    the messages between members; entries and snapshots
    membership  the members of a group and their majority
    log         the ring: snapshotted | committed | in progress
    config      the settings, and the capacity of the ring
    store       the contract of a store, and how a write becomes calls of it
    recovery    the state that a node starts from, checked
    codec       bundles of messages as bytes
    report      the state of a node for people and metrics
    roles       follower, candidate and leader, around the state they share
    multi       many groups in a process: one tick, one bundle per peer, hibernation
    testing     a conformance suite for stores, and a store in memory that crashes

Guarantees, in addition to those of Raft:

* A vote, a match index, and the leader's own part of a majority count only when they are on disk.
  Writes are done and completed in order. The leader sends entries while it writes them.
* Memory is bounded: entries in progress, appends in flight, reads, and the ring as a whole.
* All members take snapshots at the same indices, so their chunks are equal, and a member fetches
  them from several others at once.
* Each ticket is answered once. `COMMITTED` and `NOT_LEADER` are final in the whole group;
  `INDETERMINATE` means that this node cannot know.
* A change of members is in force from its append on. One change is under way at a time, and none
  before an entry of the leader's term is committed.

The core has no clock, disk, socket, thread or randomness of its own. Time is counted in ticks, and
the driver decides how long a tick is; randomness is a `host.api.Random`. The core assumes that its
peers follow the protocol; the transport rejects everyone else.

Sources: the Raft paper and Ongaro's thesis, by section in the docstrings; MicroRaft's article
"Implementing the log"; etcd's raft for the interface and the flow control.
"""
