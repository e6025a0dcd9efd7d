"""Lake tables in plain Parquet files with a manifest of our own: no catalog, no other library.

    <location>/
        _bascule/table.json                     schema, partitioning, id; written once
        _bascule/snapshots/<20 digits>.json     one a commit, numbered from 1 without gaps
        data/timestamp_day=2026-11-21/<uuid>.parquet

A snapshot comes into being by a hard link to a file that is complete and on the disk, so that the
one who links the number first has committed, and nobody ever sees half a snapshot. Everyone else
reads again what is held, checks the commit against it, and tries the next number.

Snapshot n holds the changes of the last `n & -n` commits and the state after them. So the files of
a snapshot are those of n, of n minus its lowest bit, and so on down to 0: at most 64 files to read
whatever the history's length, while a commit is written again only once for each bit: 10,000
commits rewrite every line seven times on average, and none is ever changed.
"""
