"""``python -m streamsvm``: the command line."""

import sys

from streamsvm.cli.main import main

sys.exit(main())
