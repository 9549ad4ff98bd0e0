"""Test the line "fix:" of reports. Code in this line that changes gradients must change the second side so that
`islices.diff` finds no difference but rounding."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from ported import Batch, summed

import islices

D = Batch(1)
G = summed(D)
RAW = D.raw
CLIPPED = islices.clip_by_global_norm(G, 0.2)[0]
EACH = islices.clip_by_norm(G, 0.2)
OTHERS = {n: G[n] for n in "uw"}
ALONE = {**islices.clip_by_global_norm(OTHERS, 0.2)[0], "v": G["v"]}
UNSUMMED, SUMMED = (islices.clip_by_global_norm(RAW, 0.2, semantics=s)[0] for s in ("tensorflow", "islices"))
LAST = {n: np.zeros_like(G[n]) for n in G}
for n in LAST:
    LAST[n][D.ids[n]] = D.rows[n]
CLIP, CLIP_EACH = "grads, _ = islices.clip_by_global_norm(grads, 0.2)", "grads = islices.clip_by_norm(grads, 0.2)"
LEFT = "{n: g for n, g in grads.items() if n != 'v'}"
KNOWN = {"before": RAW, "max_norm": 0.2}
#: name -> (the intended gradients, the gradients of the port, options, the expected line)
CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "clipped": (CLIPPED, G, {"max_norm": 0.2}, CLIP),
    "each, not together": (EACH, CLIPPED, KNOWN, CLIP_EACH),
    "a tensor left as it is": (
        ALONE, CLIPPED, KNOWN, f"grads = {{**islices.clip_by_global_norm({LEFT}, 0.2)[0], 'v': grads['v']}}"
    ),
    "duplicates not summed": (
        UNSUMMED, SUMMED, {"before": RAW}, "grads, _ = islices.clip_by_global_norm(grads, 0.2, semantics='tensorflow')"
    ),
    "duplicates summed": (SUMMED, UNSUMMED, {"before": RAW}, CLIP),
    "values": (
        islices.clip_by_value(G, -0.02, 0.02), G, {}, "grads = islices.clip_by_value(grads, -0.02, 0.02)"
    ),
    "rows": (islices.clip_by_row_norm(G, 0.05), G, {}, "grads = islices.clip_by_row_norm(grads, 0.05)"),
    "the last duplicate": (LAST, G, {"before": RAW}, "grad = np.zeros(shape, rows.dtype); grad[ids] = rows"),
    "l2": (
        {n: G[n] + np.float32(1e-3) * D.tables[n] for n in G}, G, {"tables": D.tables},
        "loss = loss + 0.0005 * (table ** 2).sum()",
    ),
    "16 bits": (
        {n: x.astype("f2").astype("f4") for n, x in G.items()}, G, {}, "compute the layers in float16"
    ),
    "mean": (islices.scale(G, 0.25), G, {"batch_size": 4}, "loss = loss / 4"),
    "sign": (islices.scale(G, -1.0), G, {}, "loss = -loss"),
    "ids": (
        {n: RAW[n].replace(indices=RAW[n].indices + 1) for n in RAW}, RAW, {}, "ids = ids - (-1)"
    ),
    "under optax": (
        {n: jnp.asarray(x) for n, x in CLIPPED.items()}, {n: jnp.asarray(x) for n, x in G.items()}, {"max_norm": 0.2},
        "optimizer = optax.chain(optax.clip_by_global_norm(0.2), optimizer)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_line_fixes_the_port(name: str) -> None:
    meant, wrong, options, line = CASES[name]
    found = islices.diff(meant, wrong, **options)
    lead = "fix: in b, "
    lines = [x.strip().removeprefix(lead) for x in str(found).splitlines() if x.strip().startswith(lead)]
    assert lines == [line], str(found)
    given: dict[str, Any] = {"islices": islices, "np": np}
    start = options.get("before", wrong)  # if the port clips, the line replaces the port's clip
    if line.startswith("grads"):
        exec(line, given | (names := {"grads": start}), names)
        fixed = names["grads"]
    elif line.startswith("grad "):
        fixed = {}
        for n in wrong:
            names = {"grad": start[n], "rows": D.rows[n], "ids": D.ids[n], "shape": D.tables[n].shape}
            exec(line, given | names, names)
            fixed[n] = names["grad"]
    else:
        return
    now = islices.diff(meant, fixed, **options)
    assert not now.causes, str(now)
    assert now.equal or now.rounding, str(now)
