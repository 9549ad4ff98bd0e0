"""PaddlePaddle as a backend of islices. islices finds the backend by its entry point in the group
``islices.backends``."""

from islices_paddle.adapter import PaddleBackend, backend

__all__ = ["PaddleBackend", "backend"]
