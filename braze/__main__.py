"""``python -m braze`` is the command ``braze``."""

import sys

from braze.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
