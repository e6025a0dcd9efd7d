"""Spark jobs over streams and lake tables.

    archive       a stream into a lake table, exactly once by offsets
    audit         checks that the table holds every offset of the stream once, unchanged
    replay        publishes a lake table to a stream
    rollup        SQL aggregates over time windows of a stream
    compact_lake  the last value of each key, in another table

    model          specs' faults, progress and results
    tables         the table section of a spec, and opening its table
    rows           records of the log as rows of a lake table
    offset_cursor  rows of a lake table in offset order
    executors      Python functions in Spark tasks

Each job has a spec, which is a frozen value, and a function `run(spark, spec, progress)`, which
returns a `JobResult`. Record bytes never pass through Java. Tasks read from the node and write the
data files themselves; Spark only moves one small row for each file.
"""
