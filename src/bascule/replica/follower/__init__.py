"""Following: copies the logs of partitions that other nodes lead.

::

    replicator          leads and follows as states of partitions say; one fetcher for each leader
    fetcher             the thread that fetches from one node
    followed_partition  one partition that is followed: its attempts, appends and reports
    payload_gate        has a record with a payload wait for the payload
    unheard             partitions of which the leader should say something soon
    receive_buffers     reusable memory for responses

::

    fetcher thread   receives a response -> asks for the next -> hands batches to the log writer
    log writer       appends them unchanged, takes over the leader's high watermark
    sync thread      syncs, and sends the leader the new position at once

A request is always under way, and waits at the leader. What is new on this node goes out in a
second one, which makes the leader answer the first. So a synced position reaches the leader without
waiting, and a partition without news is in no request.

The log writer decides where an attempt begins: at the end of the log after everything appended
before. What an earlier attempt still brings is dropped. See `wire.messages.peer.replica_fetch`.
"""

from bascule.replica.follower.replicator import Replicator

__all__ = ["Replicator"]
