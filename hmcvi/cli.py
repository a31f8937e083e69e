"""The old address of the command line, which is `hmcvi.commands`."""

import sys

from hmcvi.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
