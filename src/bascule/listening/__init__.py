"""What the listeners with Kafka's framing share: accepting, connections, sending, limits.

    listener          accepts connections, expires them, closes them
    listening_socket  the socket of an address
    first_bytes       which protocol a connection speaks
    connection        one peer: bytes -> wire.ServerConnection -> handler -> Sender -> bytes
    deferred          a response that is made later, without a task that waits for it
    sending           responses: memory by send, slices of segment files by sendfile
    limits            bounds on connections, memory and time, and the counters of a listener
    refusals          which refusals are logged: the first of each

Promises:

* Responses of one connection leave in the order of its requests.
* One connection's bytes, requests and failures end at most that connection. All connections of a
  listener hold no more than `ListenerLimits.memory_bytes_max` beyond their base buffers.
* `close` answers the requests in flight within `ListenerLimits.drain_ms_max`.

It never waits for a disk on the event loop: a few threads read what is not in the page cache.
Everything else runs on one event loop on raw non-blocking sockets. Of the variants that were
measured, this one costs the least per fetch.
"""
