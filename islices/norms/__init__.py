"""Exact norms of gradients, derivatives of the norms, and clipping by norms. SPEC clauses 7 to 11.

Two of optax's clips are public here; `islices` itself exports all other norms and clips.
"""

from islices.norms.clip_formulas import Semantics
from islices.norms.unitwise import adaptive_grad_clip, clip_by_block_rms

__all__ = ["Semantics", "adaptive_grad_clip", "clip_by_block_rms"]
