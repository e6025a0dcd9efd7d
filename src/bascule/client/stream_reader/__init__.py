"""Reads the partitions of a stream as Arrow batches: in turn, or merged by timestamp.

    committed when the read begins       afterwards, with `follow`
    +--------------------------------+   +---------------------------------+
    | the caller's thread fetches:   |-->| a thread for each partition     |
    | one partition after another,   |   | fetches; batches are returned   |
    | batch by batch, or merged      |   | as they arrive                  |
    +--------------------------------+   +---------------------------------+

    reader        opens the partitions and reads them
    time_merge    merges the batches of several partitions by timestamp
    arrivals      the threads of the partitions of a followed stream

Reading in the caller's thread is the fastest way. Only a read that follows a stream needs threads,
because it waits for all partitions at the same time, and for partitions that are added.

Every record of the range is returned once, and those of a partition in the order of their offsets.
An error of one partition ends the read: it never goes on with a part of the stream.
"""

from bascule.client.stream_reader.reader import (
    ORDERS,
    Order,
    StreamReader,
    bytes_of_each,
    check_positions,
)

__all__ = ["ORDERS", "Order", "StreamReader", "bytes_of_each", "check_positions"]
