"""Tables of each framework, made from NumPy arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import islices


def of(name: str, start: np.ndarray) -> Any:
    return islices.get_backend(name).asarray(start)


def tensorflow_variable(start: np.ndarray) -> Any:
    return importlib.import_module("tensorflow").Variable(start)


def torch_parameter(start: np.ndarray) -> Any:
    torch = importlib.import_module("torch")
    return torch.nn.Parameter(torch.from_numpy(start.copy()))


#: kind of table -> (framework, function that makes a table from an array, True if the table changes in place)
TABLES: dict[str, tuple[str, Callable[[np.ndarray], Any], bool]] = {
    "numpy array": ("numpy", lambda start: of("numpy", start), True),
    "torch tensor": ("torch", lambda start: of("torch", start), True),
    "torch Parameter": ("torch", torch_parameter, True),
    "tf.Variable": ("tensorflow", tensorflow_variable, True),
    "Keras variable": ("tensorflow", lambda start: importlib.import_module("keras").Variable(start), True),
    "tf.Tensor": ("tensorflow", lambda start: of("tensorflow", start), False),
    "jax array": ("jax", lambda start: of("jax", start), False),
    "mxnet NDArray": ("mxnet", lambda start: of("mxnet", start), True),
}
KINDS = [kind for kind, (name, *_) in TABLES.items() if name in islices.list_backends()]
