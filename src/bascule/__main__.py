"""`python -m bascule`: the command line."""

import sys

from bascule.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
