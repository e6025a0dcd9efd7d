"""Jobs that Spark runs over streams and lake tables.

    archive       a stream into a lake table, exactly once by offsets
    audit         every offset of the stream once in the lake, with the same content
    replay        the lake back to a stream
    compact_lake  the last value of each key, in a table of its own

Each is a spec, a frozen value that says what to do, and `run(spark, spec, progress)`, which does it
and returns a `JobResult`. Record bytes never pass through Java: the tasks read from the node and
write the data files, and what Spark moves between them is one small row for each file.
"""
