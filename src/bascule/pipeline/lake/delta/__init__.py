"""Delta tables through deltalake (delta-rs): a folder or a bucket, without a catalog.

A commit is a version of the table's log. The state that makes it exactly-once is in the version's
commitInfo under the key `bascule`:

    {"stream", "stream-id", "committed", "tokens", "spans", "rows", "bytes", "kind"}

The texts are those of `commit_plan.state_texts`. The state is also in Delta's application
transactions, which stay in checkpoints after the log's retention has removed a version:

    bascule:start:<p>, bascule:end:<p>  the committed span of stream partition <p>
    bascule:partitions                  the number of stream partitions, greatest + 1
    bascule:token:<writer>              the writer's last batch

Every commit is tried once against the version it was planned for, because delta-rs would retry a
blind append on top of any later version. A committer that loses plans again.

A partition field that is not a column (`day(timestamp)`, `value.carrier`) becomes a column that
exists only in the table's log: `timestamp_day`, `value_carrier`.
"""
