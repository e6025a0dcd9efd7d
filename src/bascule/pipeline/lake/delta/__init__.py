"""Delta tables by deltalake (delta-rs): a folder or a bucket, no catalog.

A commit is a version of the table's log. What makes it exactly-once stands in the version's
commitInfo, under the key `bascule`:

    {"stream", "stream-id", "committed", "tokens", "spans", "rows", "bytes", "kind"}

with the texts of `spans.state_texts`, and besides in Delta's own application transactions, which
outlive the log's retention in its checkpoints:

    bascule:start:<p>, bascule:end:<p>  the committed span of stream partition <p>
    bascule:partitions                  the number of stream partitions, greatest + 1
    bascule:token:<writer>              the writer's last batch

Every commit is tried once against the version that was looked at (delta-rs would repeat a blind
append by itself on top of any other), so whoever comes second looks again.

Partition fields that are no columns (`day(timestamp)`, `value.carrier`) are columns of the table
that exist in its log alone: `timestamp_day`, `value_carrier`.
"""
