"""A pipeline declared in one TOML file: its source, its job and its target.

    [pipeline]                    bascule pipeline run flights.toml
    name = "flights"                   |
    kind = "archive"                   v
    [source]                      loader       TOML, ${NAME}, --set                  pure
    stream = "flights"            sections     structs; unknown keys are refused     pure
    [table]                       dispatch     the spec of the kind's job
    format = "iceberg"            process      its own Spark; events on standard output
    location = "lake"

The whole file is checked before Java starts. Every error names the file and the key. An unknown key
is refused, and the error suggests the nearest known key. Paths are relative to the file, so that a
run from another directory uses the same checkpoint.

`python -m bascule.pipeline.declare FILE` runs a pipeline. The command line starts it and reads its
events; `spark-submit` starts it on a cluster.
"""

from bascule.pipeline.declare.loader import load
from bascule.pipeline.declare.sections import Declaration

__all__ = ["Declaration", "load"]
