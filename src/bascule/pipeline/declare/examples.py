"""The files that `bascule pipeline new` writes: every key, its default commented out. Pure."""

from __future__ import annotations

import difflib
from typing import Final

from bascule.errors import ConfigError
from bascule.pipeline.declare.sections import KINDS

_HEAD: Final = """\
# {about}
#
#   bascule pipeline check {kind}.toml     says what is wrong, without Spark
#   bascule pipeline run {kind}.toml       runs it; after a crash, once more
#
# A line that begins with # and a key shows a default. Paths are relative to this file.
# ${{NAME}} is taken from the environment, so no secret need stand here.

[pipeline]
name = "flights-{kind}"
kind = "{kind}"
{pipeline}# report = "report.html"               a page with figures and plots
# master = "local[*]"                  spark-submit brings its own
# prometheus_port = 9464               lag, rows/s, late rows; 0 picks a free port

"""
_SERVER: Final = """\
# server = "http://127.0.0.1:9080"     the node; else BASCULE_SERVER
"""
_CHECKPOINT: Final = """\
checkpoint = "checkpoint"              # Spark's position and state
# trigger = "available-now"            or an interval: "10s", and it runs until stopped
"""
_SOURCE: Final = """\
[source]
stream = "flights"
# startingOffsets = "earliest"         where a first run begins
# maxOffsetsPerTrigger = 1000000       records of one micro-batch
# failOnDataLoss = true                an error, where records are gone unread

"""
_STREAM: Final = """\
[source]
stream = "flights"

"""
_VALUE: Final = """\
# [value]                              read values into columns; without it they stay bytes
# format = "json"                      raw, json, msgpack, avro, protobuf, arrow
# schema = "carrier string, distance int, dep_delay int"
# mode = "PERMISSIVE"                  keeps what does not parse; FAILFAST ends the run

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
        _SERVER + _CHECKPOINT,
        _SOURCE
        + _VALUE
        + _TABLE.format(
            format="iceberg",
            location="lake",
            more='name = "archive.flights"\npartition_by = ["day(timestamp)"]\n\n'
            "# [table.catalog]                      without it: SQLite in the warehouse\n"
            '# type = "rest"\n# uri = "https://catalog.example.org"\n'
            '# credential = "${CATALOG_CREDENTIAL}"\n',
        )
        + """\
[archive]
# raw = false                          keep the bytes of a value beside its columns
# commit_offsets = true                so that retention_after can wait for the lake
# compact_every = 0                    join small files every so many commits
# compact_at_end = false
# expire_after_ms = 604800000          forget older snapshots

""",
    ),
    "audit": (
        "Compares each record of a stream with the lake table that archives it.",
        _SERVER,
        _STREAM
        + _VALUE
        + _ARCHIVED
        + """\
[audit]
# allow_lag = false                    the table may end before the stream does
# faults_max = 20                      so many are listed

""",
    ),
    "replay": (
        "Publishes what a lake table holds to a stream, each record once and in order.",
        _SERVER + 'checkpoint = "checkpoint"              # from which a killed run goes on\n',
        _ARCHIVED
        + """\
[replay]
to = "flights-again"                   # the stream that takes the records
subject = "again.{subject}"            # {subject}, {1}, {2}; empty is each record's own
# partitions = [0, 1]                  of the archived stream; none is all
# start_offset = 0
# end_offset = 1000000                 the first that is not wanted
# start_ms = 1767225600000             Unix time
# end_ms = 1767312000000
# malformed = true                     also records that did not parse
# original_headers = true              tell where a record came from in Bascule-Original-*

""",
    ),
    "rollup": (
        "Counts a stream by windows of time, in SQL.",
        _SERVER + _CHECKPOINT,
        _SOURCE
        + """\
[value]                                # the SQL sees value.carrier and so on
format = "json"
schema = "carrier string, distance int, dep_delay int"
# mode = "PERMISSIVE"                  a value that does not parse is null; FAILFAST ends the run

[rollup]
sql = \"\"\"
SELECT window.start AS window_start, value.carrier AS carrier,
       count(*) AS flights, avg(value.dep_delay) AS delay_mean
FROM records
GROUP BY window(timestamp, '1 hour'), value.carrier
\"\"\"
watermark = { column = "timestamp", delay = "10 minutes" }
# mode = "append"                      a window once, when it is closed; update: at each change

"""
        + _TABLE.format(
            format="delta", location="lake/flights_by_hour", more='partition_by = ["carrier"]\n'
        )
        + """\
# [sink]                               instead of [table]: a stream takes the rows as JSON
# stream = "flights-by-hour"
# subject = "counts.by-hour"           or a column `subject` of the SQL

""",
    ),
    "compact-lake": (
        "Keeps the last value of each key of an archived stream in a table of its own.",
        "",
        _ARCHIVED
        + """\
[compact_lake]
# keep_tombstones = false              keys whose last record has no value stay, with a null

[compact_lake.into]                    # rewritten as a whole by every run
format = "iceberg"
location = "lake"
name = "archive.flights_by_key"

""",
    ),
}


def example(kind: str) -> str:
    """The example file of a kind. Raises: ConfigError for a kind that is none."""
    if kind not in _BODY:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KINDS)}"
        raise ConfigError(f"kind {kind!r} is unknown; {hint}")
    about, pipeline, body = _BODY[kind]
    return _HEAD.format(about=about, kind=kind, pipeline=pipeline) + body + _SPARK
