"""The protocols of the listeners as pure code: bytes in, messages out, no input or output.

Promises: for any bytes received the only error raised is `RemoteProtocolError`, with field and
byte. Memory use depends on the bytes received, never on sizes and counts that they claim.
Never: opens a socket, reads a clock, reads the content of record batches.

Kafka's protocol, from the bottom up:

    primitives   varints, strings, counts; every bound is checked
    schema       messages as annotated dataclasses: one class, all versions
    messages/    the messages, one module per API
    codec        description -> decoder and encoder of each version, generated at first use
    frame        size-prefixed frames
    connection   ServerConnection and ClientConnection
    error_codes  error class <-> code

A client, independent of the transport:

    connection = ClientConnection(client_id="me", frame_bytes_max=64 << 20)
    sock.sendall(connection.send(ApiVersionsRequest()))
    while (event := connection.next_event()) is NEED_DATA:
        connection.received(sock.recv_into(connection.get_buffer()))   # 0: the other side closed
    connection.negotiate(event.message)
    sock.sendall(connection.send(FetchRequest(topics=[...])))          # highest common version

Fields that a version does not have are omitted when encoding and get their defaults when decoding.
So a request may have both `topic` and `topic_id`. `FetchPartitionResponse.records` is a memoryview
of the received frame. It stays valid as long as it is referenced.

The NATS client protocol is in `nats` and `subjects`, Liftbridge's envelope in `liftbridge`, and the
codes of error acks in `ack_codes`. Bascule's own protocols and formats:

    datastream     the data streaming protocol
    tables         keys, patterns and conditions of tables, and batches of their reads
    offsets        the records of `_offsets`
    announcements  what nodes of different clusters tell each other
    founding       what founders tell each other
"""
