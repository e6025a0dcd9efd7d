"""Bytes of the protocols spoken at the listeners, without any input or output.

Promises: whatever a stranger sends, the only error that comes out is `RemoteProtocolError`, with
the field and the byte; memory grows with bytes received, never with numbers claimed in them.
Never: opens a socket, reads a clock, looks inside record batches.

The log protocol (Kafka's), from the bottom up:

    primitives   varints, strings, counts; every bound checked
    schema       messages as annotated dataclasses: one class, all versions
    messages/    the messages, one module per API
    codec        description -> straight-line decoder or encoder per version, compiled on first use
    frame        size-prefixed frames
    connection   ServerConnection and ClientConnection
    error_codes  error class <-> code

Asking, whatever moves the bytes:

    connection = ClientConnection(client_id="me", frame_bytes_max=64 << 20)
    sock.sendall(connection.send(ApiVersionsRequest()))
    while (event := connection.next_event()) is NEED_DATA:
        connection.received(sock.recv_into(connection.get_buffer()))   # 0: the other side closed
    connection.negotiate(event.message)
    sock.sendall(connection.send(FetchRequest(topics=[...])))          # highest common version

Fields that a version lacks are left out when encoding and get their defaults when decoding, so
a request may carry both `topic` and `topic_id`. `FetchPartitionResponse.records` is a memoryview
of the received frame, valid as long as it is held.

The NATS client protocol lives in `nats` and `subjects`.
"""
