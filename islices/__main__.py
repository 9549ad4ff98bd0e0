"""Run the `islices` command by ``python -m islices``."""

import sys

from islices.cli import main

sys.exit(main())
