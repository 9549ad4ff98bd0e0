"""``python -m islices.conformance.tools.bench``: `islices bench`; with ``--worker JOB``, one of its processes."""

from __future__ import annotations

import sys

if sys.argv[1:2] == ["--worker"]:
    from islices.conformance.tools.bench.worker import main

    main(sys.argv[2])
else:
    from islices.cli import main as command

    sys.exit(command(["bench", *sys.argv[1:]]))
