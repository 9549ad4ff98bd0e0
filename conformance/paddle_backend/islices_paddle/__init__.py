"""PaddlePaddle as a backend of islices, found by its entry point in the group ``islices.backends``."""

from islices_paddle.adapter import PaddleBackend, backend

__all__ = ["PaddleBackend", "backend"]
