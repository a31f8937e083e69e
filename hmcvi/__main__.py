"""`python -m hmcvi COMMAND …`, and `torchrun … -m hmcvi COMMAND …`."""

import sys

from hmcvi.commands import main

if __name__ == "__main__":
    sys.exit(main())
