"""Lake tables as plain Parquet files with Bascule's own manifest: no catalog, no other library.

    <location>/
        _bascule/table.json                     schema, partitioning, id; written once
        _bascule/snapshots/<20 digits>.json     one per commit, numbered from 1 without gaps
        data/timestamp_day=2026-11-21/<uuid>.parquet

A snapshot is created by a hard link to a complete, synced file. The process that links a number
first has committed, and no reader sees a partial snapshot. A process that loses reads the new
state, checks its commit against it, and tries the next number.

Snapshot n holds the changes of the last `n & -n` commits and the state after them. So the files of
a snapshot are those of n, of n minus its lowest bit, and so on down to 0. At most 64 files are
read, whatever the length of the history. A commit is rewritten once per bit: with 10,000 commits
every line is rewritten seven times on average. No file changes its meaning.
"""
