"""PaddlePaddle as a backend of islices. The entry point in the group ``islices.backends`` makes the backend known to
islices."""

from islices_paddle.adapter import PaddleBackend, backend

__all__ = ["PaddleBackend", "backend"]
