"""`bascule pipeline`: declared pipelines, checked here and run in a process of their own.

check      the file alone, without Spark
new        an example file, with every key explained
run        Spark in a session of its own; its events become a progress bar and one table
sdp        the same as a project of Spark Declarative Pipelines
sdp-run    runs such a project, and ends as the run did
"""

from bascule.cli.pipeline.commands import pipeline

__all__ = ["pipeline"]
