"""Run one rank: ``python -m islices.conformance.ranks.worker ENGINE TARGET FOLDER``.

The process joins its engine with the environment variables that `launch` set. Then the process calls ``function(group,
**keywords)``, where TARGET is "module:function" or "path/to/file.py:function". The process writes the result or the
error into FOLDER.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from islices.conformance.ranks.launch import MEETING, PORTS, RANK, SIZE, TIMEOUT
from islices.distributed import get_group
from islices.distributed.engines import load_engine


def start_torch(rank: int, size: int, timeout: float) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(os.environ[MEETING], size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout)
    )
    return get_group("torch")


def start_mpi(rank: int, size: int, timeout: float) -> Any:
    return get_group("mpi", timeout=timeout)


def start_jax(rank: int, size: int, timeout: float) -> Any:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{os.environ[PORTS]}", size, rank, heartbeat_timeout_seconds=max(10, int(timeout))
    )
    return get_group("jax", timeout=timeout)


def start_tensorflow(rank: int, size: int, timeout: float) -> Any:
    workers = [f"127.0.0.1:{port}" for port in os.environ[PORTS].split(",")]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return get_group(strategy)


#: name of a built-in engine -> a function (rank, size, seconds) that joins the engine and returns the Group
STARTS: dict[str, Callable[[int, int, float], Any]] = {
    "torch": start_torch,
    "mpi": start_mpi,
    "jax": start_jax,
    "tensorflow": start_tensorflow,
}


def main(engine: str, target: str, folder: str) -> None:
    place = Path(folder)
    rank = int(os.environ.get(RANK) or os.environ["PMI_RANK"])  # MPI's launcher numbers the ranks
    size, timeout = int(os.environ[SIZE]), float(os.environ[TIMEOUT])
    sys.path[:], keywords = pickle.loads((place / "given.pickle").read_bytes())  # the same sys.path as in the parent
    try:
        if engine in STARTS:
            group = STARTS[engine](rank, size, timeout)
        else:
            brought: Any = load_engine(engine)
            group = brought.start(rank, size, timeout, os.environ[MEETING])
        answer = {"value": _function(target)(group, **keywords)}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = {"error": (kinds, str(error), traceback.format_exc())}
    partial = place / f"{rank}.partial"
    partial.write_bytes(pickle.dumps(answer))
    partial.rename(place / f"{rank}.pickle")
    sys.stdout.flush()
    sys.stderr.flush()
    if "error" in answer:  # at exit, an engine could wait for ever for a collective call
        os._exit(1)


def _function(target: str) -> Callable[..., Any]:
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that pickle finds its classes
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    return getattr(module, name)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(*sys.argv[1:])
