"""``python -m daskmm`` is the command ``daskmm``."""

import sys

from daskmm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
