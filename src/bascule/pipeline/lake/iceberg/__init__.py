"""Iceberg tables by pyiceberg: any catalog it knows, or SQLite in the warehouse if none is named.

A commit is a snapshot whose files are added as they are, with field ids in them and bounds of
their columns in the manifests, so that pyiceberg and every other engine reads and prunes them. What
makes it exactly-once stands in the snapshot's summary, and the cumulative part in the properties of
the table as well, where an expiry by somebody else does not reach it:

    bascule.stream, bascule.stream-id   the stream
    bascule.committed                   {"<stream partition>": [start, end], ...}
    bascule.tokens                      {"<writer>": <last batch>, ...}
    bascule.spans                       [[partition, start, end, rows, crc], ...] of this commit

pyiceberg repeats a commit by itself when another one came first, with the summary of before; that
would lose spans, so `commit.retry.num-retries` of these tables is 0 and every commit checks that.
"""
