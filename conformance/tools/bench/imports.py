"""The part "import": `import islices`, which imports NumPy, against `import numpy`, each in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median

from islices.conformance.tools.bench.rounds import ratio

__all__ = ["import_times"]

ROUNDS = 11
CODE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def import_times() -> dict[str, float]:
    """Median seconds of both, and the median of their ratios. Bytecode is cached, as it is where pip installs."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        found: dict[str, list[float]] = {"numpy": [], "islices": []}
        for turn in range(-1, ROUNDS):
            for module, times in found.items():
                command = [sys.executable, "-c", CODE.format(module)]
                done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
                if turn >= 0:
                    times.append(float(done.stdout))
    both = ratio(found["islices"], found["numpy"])
    return {"numpy": median(found["numpy"]), "islices": median(found["islices"]), "ratio": both}
