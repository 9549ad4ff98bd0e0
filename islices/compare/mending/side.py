"""The side that has to change."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Port"]


class Port(NamedTuple):
    """framework: by its backend's name. form: "sparse" or "dense". dtype: of its tensors. other: the other side's
    framework. front: "torch", "keras", "jax" or "mxnet" where its steps were recorded there, "" where its arrays alone
    are known."""

    framework: str
    form: str
    dtype: str
    other: str
    front: str = ""

    @property
    def sparse(self) -> bool:
        return self.form == "sparse"
