"""`python -m bascule.pipeline.declare FILE`."""

import sys

from bascule.pipeline.declare.process import main

sys.exit(main())
