"""MXNet's adapter imports MXNet before the tests do, because it does not know this NumPy."""

from __future__ import annotations

import islices

collect_ignore_glob = []
if "mxnet" in islices.list_backends():
    islices.get_backend("mxnet")
else:
    collect_ignore_glob = ["test_lookups.py", "test_gluon.py", "test_mxnet.py"]
