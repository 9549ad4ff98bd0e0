"""Choose how islices computes: execution mode, compiled kernels, number of threads. SPEC clause 20."""

from islices.core.modes import execution
from islices.kernels import get_num_threads, set_num_threads, use_kernels

__all__ = ["execution", "get_num_threads", "set_num_threads", "use_kernels"]
