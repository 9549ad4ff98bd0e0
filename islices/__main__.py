"""``python -m islices``: the `islices` command."""

import sys

from islices.cli import main

sys.exit(main())
