"""A pipeline in one file: what it reads, what it does, where it leaves it.

    [pipeline]                    bascule pipeline run flights.toml
    name = "flights"                   |
    kind = "archive"                   v
    [source]                      document   TOML, ${NAME}, --set            pure
    stream = "flights"            sections   structs; unknown keys refused   pure
    [table]                       jobs       the spec of the kind's job
    format = "iceberg"            process    a Spark of its own, events on standard output
    location = "lake"

A file is checked whole before Java is started, and every error names file and key. Nothing in it is
guessed: an unknown key is refused with the nearest known one. Paths are relative to the file, so
that a run from another directory finds the same checkpoint.

Running is `python -m bascule.pipeline.declare FILE`: by the command line, which watches its events,
or by `spark-submit`, which brings the master.
"""

from bascule.pipeline.declare.loader import load
from bascule.pipeline.declare.sections import Declaration

__all__ = ["Declaration", "load"]
