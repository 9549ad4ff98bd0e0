"""Import MXNet through its backend first, because a plain import fails with a current NumPy."""

from __future__ import annotations

import islices

collect_ignore_glob = []
if "mxnet" in islices.list_backends():
    islices.get_backend("mxnet")
else:
    collect_ignore_glob = ["test_lookups.py", "test_gluon.py", "test_mxnet.py"]
