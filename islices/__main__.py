"""Run the `islices` command when Python is called as ``python -m islices``."""

import sys

from islices.cli import main

sys.exit(main())
