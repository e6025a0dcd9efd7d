"""One node's shell: sockets, threads and tasks around the pure packages below.

    door/        the client door: streams over the Kafka wire protocol
    handlers/    one module per request of it
    delayed      requests that wait for partitions to move
    http/        administration and metrics
"""
