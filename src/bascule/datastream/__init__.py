"""Data streaming: payloads of any size, from a client through any replica to all of them.

A client sends packets to one replica of the partition, the *primary*. Each node writes what it
receives to a file of its own, and forwards it at once to its successors in a tree. An
acknowledgement goes up the tree when a node and all nodes below it have written a packet. When the
client closes the payload, every node compares size and checksum, syncs the file, and only then one
small record goes through the log: the link (`storage.payloads`).

    protocol     routes, received, progress, chunk_messages: which node forwards to which, what has
                 come, what the tree has, and what chunks of NATS clients say; pure
    transport    reactor, connection, sending: one thread with the sockets of all payloads
    session      one payload that this node receives and forwards
    successor    the connection to one node that a session forwards to
    inbound      a connection of a client or another node
    chunked_...  payloads that NATS clients send in chunks, and one of them: this node leads the
                 partition, and is their primary
    left_sess... sessions whose sender went on to another payload
    admission    which connection or payload gives its place to a new one
    disk         write_back, paced_thread, pacing: what of payloads is in memory only goes to the
                 disk in small steps, more slowly while syncs of logs are delayed by it;
                 whole_reads, sums_builds: reads of whole payloads, which delay nothing else;
                 leftovers: removes what no record names
    fetching     gets a payload from a node that has it
    fetches      those that are got: what this node lacks, and what is damaged
    limits       limits and counters
    ports        what it needs of the rest of the node
    service      those of a node: limits, timeouts, what other packages call

Promises:

* A payload is acknowledged to its client when its record is committed. So it is whole and synced
  on every in-sync replica: a replica appends a link only when it has the payload.
* Memory does not depend on what clients send. A node holds one buffer, and at most 64 MiB of keys
  and headers. Bytes that a successor cannot take yet stay in the file, and what exceeds the window
  stays in the sender's socket. So does what the disk cannot take: the page cache has 128 MiB of
  payloads that are not written.
* What one connection does ends that connection at most. Whoever takes all places and sends nothing,
  or little, loses them to others. What is never linked is removed after a timeout, and counted.
"""
