"""Raft on a real machine: a store on SQLite, a thread for the disk, TCP, and asyncio around them.

::

    requests, bundles, ticks, completions --> MultiRaft --> bundles   to peers
    (each schedules one call of `ready`       |         --> writes    to the write thread
     per turn of the loop)                    |         --> applies   to state machines
                                              |         --> answers   to futures

    driver          `RaftDriver`: groups, time, and the calls of `ready`
    group           `RaftGroup`: one group as its user sees it
    state_machine   what a user provides
    observer        callbacks for role, term, leader, members and removal
    request_ids     proposals that may be repeated
    ticker          the time of the clock as ticks
    write_thread    carries out the writes of all groups, with one flush per round
    data_directory  a lock, and the database
    sqlite_store    the Raft logs of a node in one SQLite file
    transport       the listener, and a link to each peer
    peer_link       a connection to one peer, with reconnects and a bounded queue
    handshake       the first frame of a connection
    framing         frames out of a stream of bytes

Guarantees: the loop never waits for the disk; proposals that arrive during a sync share the next
one; everything that is refused, dropped or failed is counted and logged. When a store or the core
fails, the node stops; when a state machine fails, its group stops on this node. Neither continues
with a wrong state.

Every request is answered exactly once; `stop` answers all pending ones.

`docs/raft.md` is the manual.
"""
