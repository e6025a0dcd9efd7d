"""Iceberg tables through pyiceberg: any catalog that it supports, or SQLite in the warehouse.

A commit is a snapshot that adds finished files. The files contain field ids, and the manifests
contain column bounds, so that every engine can read and prune them. The state that makes a commit
exactly-once is in the snapshot's summary. Its cumulative part is also in the table's properties,
where another program's expiry does not remove it:

    bascule.stream, bascule.stream-id   the stream
    bascule.committed                   {"<stream partition>": [start, end], ...}
    bascule.tokens                      {"<writer>": <last batch>, ...}
    bascule.spans                       [[partition, start, end, rows, crc], ...] of this commit

pyiceberg retries a commit with the old summary when another commit came first, which would lose
spans. So `commit.retry.num-retries` of these tables is 0, and every commit checks that.
"""
