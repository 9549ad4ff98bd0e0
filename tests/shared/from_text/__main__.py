"""Run the adapter: ``python -m from_text``."""

from __future__ import annotations

import json
import sys

import numpy as np

from from_text.answers import answer

for text in sys.stdin:
    line = json.loads(text)
    if "hello" in line:
        out = {"hello": "from the text", "version": f"numpy {np.__version__}", "protocol": 1}
    else:
        out = {"call": line["call"], **answer(line)}
    print(json.dumps(out), flush=True)
