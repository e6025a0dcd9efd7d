"""The files that `bascule pipeline new` writes: every key, with defaults commented out. Pure.

They need nothing that reading such a file needs.
"""

from __future__ import annotations

import difflib
from typing import Final

from bascule.errors import ConfigError

_HEAD: Final = """\
# {about}
#
#   bascule pipeline check {kind}.toml     checks this file, without Spark
#   bascule pipeline run {kind}.toml       runs it; run it again after a crash
#
# A commented key shows its default. Paths are relative to this file.
# ${{NAME}} is replaced from the environment; use it for secrets.

[pipeline]
name = "flights-{kind}"
kind = "{kind}"
{pipeline}# report = "report.html"               a page with figures and plots
# master = "local[*]"                  spark-submit sets its own
# prometheus_port = 9464               lag, rows/s, late rows; 0 picks a free port

"""
_SERVER: Final = """\
# server = "http://127.0.0.1:9080"     the node; default: BASCULE_SERVER
"""
_RETRY_TIMEOUT: Final = """\
# retry_timeout = "2m"                 how long the node may be away
"""
_CHECKPOINT: Final = """\
checkpoint = "checkpoint"              # Spark's position and state
# trigger = "available-now"            or an interval such as "10s": runs until stopped
"""
_SOURCE: Final = """\
[source]
stream = "flights"
# startingOffsets = "earliest"         start of the first run
# maxOffsetsPerTrigger = 1000000       records per micro-batch
# failOnDataLoss = true                fail if unread records were removed

"""
_STREAM: Final = """\
[source]
stream = "flights"

"""
_VALUE: Final = """\
# [value]                              decode values into columns; without it they stay bytes
# format = "json"                      raw, json, msgpack, avro, protobuf, arrow
# schema = "carrier string, distance int, dep_delay int"
# mode = "PERMISSIVE"                  keeps malformed records; FAILFAST ends the run

"""
_TABLE: Final = """\
[table]
format = "{format}"                    # iceberg, delta, parquet
location = "{location}"
{more}
"""
_ARCHIVED: Final = _TABLE.format(
    format="iceberg", location="lake", more='name = "archive.flights"\n'
)
_SPARK: Final = """\
# [spark]                              settings of Spark
# "spark.driver.memory" = "2g"
"""

_BODY: Final = {
    "archive": (
        "Archives a stream into a lake table, exactly once by offsets.",
        _SERVER + _CHECKPOINT + _RETRY_TIMEOUT,
        _SOURCE
        + _VALUE
        + _TABLE.format(
            format="iceberg",
            location="lake",
            more='name = "archive.flights"\npartition_by = ["day(timestamp)"]\n\n'
            "# [table.catalog]                      default: SQLite in the warehouse\n"
            '# type = "rest"\n# uri = "https://catalog.example.org"\n'
            '# credential = "${CATALOG_CREDENTIAL}"\n',
        )
        + """\
[archive]
# raw = false                          also keep the bytes of typed values
# commit_offsets = true                lets retention_after wait for the lake
# compact_every = 0                    compact small files every n commits
# compact_at_end = false
# expire_after_ms = 604800000          remove older snapshots

""",
    ),
    "audit": (
        "Compares each record of a stream with the lake table that archives it.",
        _SERVER + _RETRY_TIMEOUT,
        _STREAM
        + _VALUE
        + _ARCHIVED
        + """\
[audit]
# allow_lag = false                    accept a table that ends before the stream
# faults_max = 20                      faults listed at most

""",
    ),
    "replay": (
        "Publishes what a lake table holds to a stream, each record once and in order.",
        _SERVER
        + 'checkpoint = "checkpoint"              # lets a killed run continue\n'
        + _RETRY_TIMEOUT,
        _ARCHIVED
        + """\
[replay]
to = "flights-again"                   # the target stream
subject = "again.{subject}"            # {subject}, {1}, {2}; empty: the record's own
# partitions = [0, 1]                  of the archived stream; default: all
# start_offset = 0
# end_offset = 1000000                 exclusive
# start_ms = 1767225600000             Unix time
# end_ms = 1767312000000
# malformed = true                     replay malformed records too
# original_headers = true              add the headers Bascule-Original-*

""",
    ),
    "rollup": (
        "Counts a stream by windows of time, in SQL.",
        _SERVER + _CHECKPOINT + _RETRY_TIMEOUT,
        _SOURCE
        + """\
[value]                                # the SQL uses value.carrier and so on
format = "json"
schema = "carrier string, distance int, dep_delay int"
# mode = "PERMISSIVE"                  malformed values are null; FAILFAST ends the run

[rollup]
sql = \"\"\"
SELECT window.start AS window_start, value.carrier AS carrier,
       count(*) AS flights, avg(value.dep_delay) AS delay_mean
FROM records
GROUP BY window(timestamp, '1 hour'), value.carrier
\"\"\"
watermark = { column = "timestamp", delay = "10 minutes" }
# mode = "append"                      writes a window once, when it closes; update: at each change

"""
        + _TABLE.format(
            format="delta", location="lake/flights_by_hour", more='partition_by = ["carrier"]\n'
        )
        + """\
# [sink]                               instead of [table]: rows as JSON to a stream
# stream = "flights-by-hour"
# subject = "counts.by-hour"           or a column `subject` in the SQL

""",
    ),
    "compact-lake": (
        "Keeps the last value of each key of an archived stream in another table.",
        "",
        _ARCHIVED
        + """\
[compact_lake]
# keep_tombstones = false              keep deleted keys, with a null value

[compact_lake.into]                    # every run rewrites it
format = "iceberg"
location = "lake"
name = "archive.flights_by_key"

""",
    ),
}


def example(kind: str) -> str:
    """Return the example file of a kind. Raises: ConfigError for an unknown kind."""
    if kind not in _BODY:
        near = difflib.get_close_matches(kind, _BODY, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_BODY)}"
        raise ConfigError(f"kind {kind!r} is unknown; {hint}")
    about, pipeline, body = _BODY[kind]
    return _HEAD.format(about=about, kind=kind, pipeline=pipeline) + body + _SPARK
