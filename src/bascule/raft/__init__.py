"""Raft as a library: a pure core, MicroRaft's log, and a store's contract.

One object is one member of one group (`node.Node`). It is told what happened and hands over what is
to be done; it waits for nothing and touches nothing::

    messages --> step      +------+      ready --> send       at once
    time     --> tick      | Node |            --> write      to a RaftStore, then its then_send
    requests --> propose,  |      |            --> apply      to the state machine
                 read ...  +------+            --> answers    to whoever asked
    write or apply done --> advance

    node      the door: what is above, and a report
    effects   the values that `ready` hands over, and a driver's duties
    messages  what members say to each other; entries and snapshots
    quorum    members, and what a majority of them has
    log       the ring: snapshotted | committed | in progress
    config    the settings, and the ring's capacity that follows from them
    codec     bundles of messages as bytes
    roles     follower, candidate, leader, around the state they share
    store     where a node's part survives: the contract, a memory that crashes, a suite for any
    multi     many groups in a process: one tick, one message per peer, none for groups at rest

Promises, beside those of Raft itself:

* A vote, a match and the leader's own share of a majority count once they are on disk, never
  before. Writes are done in their order and told of afterwards; the leader sends while it writes.
* Memory is bounded: entries in progress, appends under way, reads, and the ring as a whole.
* Snapshots are taken at the same indices on every member, so their chunks are the same and can be
  fetched from all at once.
* Each ticket is answered once. `COMMITTED` and `NOT_LEADER` are final in the whole group;
  `INDETERMINATE` says that nobody here can tell.
* A change of members is in force from its append on; one at a time, and none before an entry of the
  leader's term is committed.

Never: a clock, a disk, a socket, a thread, a die of its own. Time comes as ticks, whose length is
the driver's affair, and dice as `host.api.Random`. The core trusts its peers to keep to the
protocol; what a stranger sends is the transport's to refuse.

Sources: the Raft paper and Ongaro's thesis, by section in the docstrings; MicroRaft's article
"Implementing the log"; etcd's raft for the boundary and the flow control.
"""
