"""Heartbeats between processes: whether the process of a node runs, apart from how busy it is.

Each voter has a connection to the peer listener of every other node, and sends a ping of 8 bytes
each 100 ms, as long as the one before was answered. Both sides are handled by a thread that does
nothing else. So an answer does not wait for an event loop that has much to do, and a silence of
0.6 s (see `silence`) means that the process is paused, or that the network is cut.

::

    asyncio (`peer_heartbeats`)                 one thread (`heartbeat_thread`)
      connects, says hello      -- socket -->     pings, and measures the silence (`silence`)
      accepts, peeks            -- socket -->     answers pings
      refused: the process is gone
      on_lost(node)             <------------     silent, or the connection has ended

    hello    u32 length, MessagePack map {cluster, source, target}
    ping     u64 number
    answer   u64 number, u64 incarnation of the process that answers

What it promises: silence is time on this node's monotonic clock in which its own thread ran. A
node that was paused, or got no processor time, does not take the others for silent. What it never
does: decide anything. A hung event loop answers heartbeats, so whoever needs to know of one asks it
something else.
"""
