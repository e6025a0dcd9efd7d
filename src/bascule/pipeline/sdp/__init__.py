"""A declared archive or rollup as a project of Spark Declarative Pipelines.

    DIR/spark-pipeline.yml              what `spark-pipelines run` reads
    DIR/transformations/pipeline.py     loads the declaration, and defines its flow into a sink
    DIR/storage/                        checkpoints

The declaration stays where it is: the project names it, so that a secret that comes from the
environment is written nowhere. What runs is the same source, SQL and sink as by
`bascule pipeline run`; the position is in the project's storage, not in `pipeline.checkpoint`.

    project    writes the folder                            pure but for the files
    flows      what the definition file calls               in Spark's process
    outcome    whether a run COMPLETED, from its output     pure
    __main__   runs a project and ends as the run did
"""

from bascule.pipeline.sdp.project import write_project

__all__ = ["write_project"]
