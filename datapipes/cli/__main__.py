"""Run the command as `python -m datapipes.cli`."""

import sys

from datapipes.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
