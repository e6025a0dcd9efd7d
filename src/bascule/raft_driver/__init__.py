"""Raft on a real machine: a store on SQLite, a thread for the disk, TCP, and asyncio around it.

::

    requests, bundles, ticks, completions --> hub --> bundles      to peers
    (each only marks the hub as worth         |  --> writes       to the thread
     a look, once a turn of the loop)         |  --> applies      to state machines
                                              |  --> answers      to futures

    driver          the door: groups, time, and the look
    group           one group as its user sees it
    state_machine   what a user provides
    write_thread    carries out the writes of all groups, one flush a round
    data_directory  a lock, and the database
    sqlite_store    the Raft logs of a node in one SQLite file
    counts          what it all comes to
    transport       the listener, and a link to each peer
    peer_link       dialled, dialled again, bounded
    hello, framing  how a connection begins, and its frames

Promises: the loop never waits for the disk; what is proposed while a sync runs shares the next; and
what is refused, dropped or failed is counted and told. A store or a core that fails silences its
node, and a state machine its group, rather than let it go on and be wrong.

Never: a request that is answered twice, or not at all. `stop` answers all.

`docs/raft.md` is the manual.
"""
