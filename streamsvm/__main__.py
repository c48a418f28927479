"""``python -m streamsvm``: the command line."""

import sys

from streamsvm.cli import main

sys.exit(main())
