"""Compute exact norms of gradients, compute the derivatives of the norms, and clip by norms. SPEC clauses 7 to 11.

Two clipping functions that come from optax, and the type `Semantics`, are public here. All other norms and clipping
functions are public in `islices` itself.
"""

from islices.norms.clip_formulas import Semantics
from islices.norms.unitwise import adaptive_grad_clip, clip_by_block_rms

__all__ = ["Semantics", "adaptive_grad_clip", "clip_by_block_rms"]
