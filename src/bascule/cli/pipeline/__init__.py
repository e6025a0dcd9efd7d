"""`bascule pipeline`: checks declared pipelines, and runs them in a separate process.

check      checks the file, without Spark
new        writes an example file with every key explained
run        runs Spark in its own session and shows progress and a result table
sdp        writes the pipeline as a project of Spark Declarative Pipelines
sdp-run    runs such a project and exits with its outcome
"""

from bascule.cli.pipeline.commands import pipeline

__all__ = ["pipeline"]
