"""``python -m minibert``: the command line."""

import sys

from minibert.cli import main

if __name__ == "__main__":
    sys.exit(main())
