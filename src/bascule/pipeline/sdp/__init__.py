"""A declared archive or rollup as a project of Spark Declarative Pipelines.

    DIR/spark-pipeline.yml              what `spark-pipelines run` reads
    DIR/transformations/pipeline.py     loads the declaration, and defines its flow into a sink
    DIR/storage/                        checkpoints

The project refers to the declaration file and does not copy it, so secrets from the environment are
never written. The source, SQL and sink are those of `bascule pipeline run`. The position is in the
project's storage, not in `pipeline.checkpoint`.

    project    writes the folder                                  pure except for the files
    flows      called by the definition file                      in Spark's process
    outcome    decides from the output whether a run COMPLETED    pure
    __main__   runs a project and exits with its outcome
"""

from bascule.pipeline.sdp.project import write_project

__all__ = ["write_project"]
