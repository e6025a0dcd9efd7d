"""A declared pipeline as the application of `spark-submit`:

    spark-submit --master spark://host:7077 examples/run_pipeline.py flights.toml

The master, memory and so on come from `spark-submit`; bascule is installed on every machine.
"""

import sys

from bascule.pipeline.declare.process import main

sys.exit(main())
