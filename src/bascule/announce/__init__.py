"""What nodes conclude from what they announce on one NATS. Pure: announcements in, effects out.

    exchange      what a node sends, when, and what it concludes from what it hears
    remote_node   one other node: which streams it has, and whether its list is complete
    duplicates    which streams of two clusters are the same, and when that is a conflict
    founders      how empty nodes agree on the founders of a cluster; it stands for itself

The others find streams that two clusters have.

Two clusters with the same stream both store each message and both acknowledge it. A publisher takes
the first ack and does not learn that there are two logs. So each node announces its streams on a
subject of NATS (`wire.announcements` has the format)::

    start, reconnect   alive (asking)  ->   every other node: alive
    unknown revision   request         ->   that node: list, page by page, to everybody
    a stream changes   change          ->   who has the revision before applies it
    each interval      alive
    stop               end

Idle, a node sends one announcement of some 140 bytes an interval. A list is sent on request only,
once a second at most, and one answers all requests. A node keeps the hash of each name in another
node's list (8 bytes a stream), and whole claims of its own names only. Where it creates a stream
whose hash another node has, it asks for that list again.

Promises: after each complete exchange a node knows all streams of every other node that have one of
its own names. A lost announcement shows as a revision that does not fit, and the list is requested
again. Nodes of the same cluster are not compared. A node with this node's own ids is one of another
cluster: its data directory is a copy. A node that is not heard of for three of its intervals is
gone, and with it its conflicts.

It never trusts an announcement: unreadable ones, those of unknown versions and those beyond the
limits are counted and ignored.
"""
