"""Optimizers for tables with row-sparse gradients.

With the default arguments, a step with a sparse gradient updates only the rows that the gradient contains.

>>> from islices import optim
>>> optim.adam(1e-3)
adam(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0, amsgrad=False, rows='touched')

SPEC clause 16.
"""

from islices.optim.custom import custom
from islices.optim.optimizer import Optimizer
from islices.optim.records.adagrad import adagrad, rowwise_adagrad
from islices.optim.records.adam import adam, adamw
from islices.optim.records.adamax import adamax
from islices.optim.records.ftrl import ftrl
from islices.optim.records.lion import lion
from islices.optim.records.nadam import nadam
from islices.optim.records.rmsprop import rmsprop
from islices.optim.records.sgd import sgd

__all__ = [
    "Optimizer",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "custom",
    "ftrl",
    "lion",
    "nadam",
    "rmsprop",
    "rowwise_adagrad",
    "sgd",
]
