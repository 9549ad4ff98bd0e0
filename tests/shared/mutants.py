"""Realistic faults, each made by one edit. The quick profile must detect the faults in `MUTANTS`, and tests must
detect the faults in `OF_TESTS`.

`old` occurs exactly once in `file` (relative to the repository's root). `why` describes the maintainer's mistake, and
the input that shows it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "OF_TESTS", "Mutant"]


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    #: The cheapest backend whose conformance run can show the fault.
    shown_by: str
    why: str


MUTANTS = [
    # ================================================================== torch (5)
    Mutant(
        "torch-native-always-coalesced",  # blatant
        "backends/torch/adapter.py",
        "is_coalesced=coalesced, check_invariants",
        "is_coalesced=True, check_invariants",
        "torch",
        "to_native claims that every sparse tensor is coalesced: shows with duplicates or unsorted indices given back "
        "as a native tensor.",
    ),
    Mutant(
        "torch-row-amax-without-negatives",  # blatant
        "backends/torch/adapter.py",
        "        return torch.maximum(high, -low)\n",
        "        return high\n",
        "torch",
        "The largest |x| of a row forgets negative numbers: norms (ord inf above all) in mode framework where the largest "
        "in size is negative.",
    ),
    Mutant(
        "torch-segment-max-starts-at-tiny",  # medium
        "backends/torch/adapter.py",
        "lowest = -torch.inf if kind.is_floating_point else",
        "lowest = torch.finfo(kind).tiny if kind.is_floating_point else",
        "torch",
        "finfo.tiny taken for the lowest float: a max bag, or scatter_max/min, whose numbers are all on the wrong side of "
        "zero, in mode framework.",
    ),
    Mutant(
        "torch-sqrt-float32-as-it-is",  # medium
        "backends/torch/arithmetic.py",
        "        return x.double().sqrt().to(x.dtype)\n",
        "        return x.sqrt()\n",
        "torch",
        "torch's own float32 root, which is one unit off for one number in six: sqrtn bags and roots of optimizers of "
        "float32 and 16-bit tables in mode framework.",
    ),
    Mutant(
        "torch-take-flattens-rows",  # narrow
        "backends/torch/adapter.py",
        "return rows if positions.ndim == 1 else rows.reshape((*positions.shape, *x.shape[1:]))",
        "return rows if positions.ndim == 1 else rows.reshape((*positions.shape, -1))",
        "torch",
        "Ids of two dimensions or more flatten the looked-up rows: shows for tables whose rows are not one-dimensional "
        "(0-d or 2-D rows), every row shape of one dimension is right.",
    ),
    # ================================================================== tensorflow (5)
    Mutant(
        "tensorflow-isin-lower-bound",  # blatant
        "backends/tensorflow/row_segments.py",
        "searchsorted(ascending, indices, right=True)",
        "searchsorted(ascending, indices, right=False)",
        "tensorflow",
        "The wrong side of the search: no index is ever found among several rows, so keep_rows and drop_rows of row numbers "
        "in mode framework and in graphs keep the wrong ones.",
    ),
    Mutant(
        "tensorflow-fold-rows-last-layer",  # blatant, traced
        "backends/tensorflow/row_segments.py",
        "    layers = tf.reduce_max(tf.concat([[-1], layer], 0)) + 1\n",
        "    layers = tf.reduce_max(tf.concat([[-1], layer], 0))\n",
        "tensorflow",
        "Off by one in the loop's count: scatter_mul and scatter_div in a tf.function leave out the last contribution of the "
        "rows with most (all, where none occurs twice).",
    ),
    Mutant(
        "tensorflow-segment-max-nan",  # medium
        "backends/tensorflow/row_segments.py",
        "rank = tf.where(values > lowest, 1, tf.where(tf.math.is_nan(values), 2, 0))",
        "rank = tf.where(values > lowest, 1, 0)",
        "tensorflow",
        "A NaN counts as nothing: a max bag, or scatter_max, with a NaN among its members in mode framework or a graph.",
    ),
    Mutant(
        "tensorflow-read-checked-reads-row-0",  # medium, traced
        "backends/tensorflow/row_segments.py",
        "        return tf.where(column, found, tf.zeros_like(found))\n",
        "        return found\n",
        "tensorflow",
        "In a graph an id out of range reads row 0 in place of zeros: a lookup with such an id in a tf.function.",
    ),
    Mutant(
        "tensorflow-in-range-includes-rows",  # narrow, traced
        "backends/tensorflow/row_segments.py",
        "    return tf.logical_and(mask, tf.less(indices, rows))\n",
        "    return tf.logical_and(mask, tf.less_equal(indices, rows))\n",
        "tensorflow",
        "Off by one: the index `rows` itself counts as a row, in a graph and for padded slots in mode framework; other "
        "indices out of range are still dropped.",
    ),
    # ================================================================== jax (6)
    Mutant(
        "jax-set-at-clips",  # blatant
        "backends/jax/scatters.py",
        '    return lax.scatter(x, ids[:, None], updates, _dimensions(updates), mode="drop")\n',
        '    return lax.scatter(x, ids[:, None], updates, _dimensions(updates), mode="clip")\n',
        "jax",
        "The sentinel's slots are written to the last row: to_dense in mode framework with a number of slots that is no power "
        "of two, and row updates in jit that leave spare slots.",
    ),
    Mutant(
        "jax-sum-rows-one-slot-short",  # blatant, traced
        "backends/jax/scatters.py",
        "    place = lax.cumsum(first.astype(np.int32))\n",
        "    place = lax.cumsum(first[:-1].astype(np.int32), 0).clip(0, n - 2)[jnp.arange(n).clip(0, n - 2)]\n",
        "jax",
        "The traced result is taken to hold one row fewer than slots: in jit, where all indices are distinct, the last row's "
        "values are added to the row before it.",
    ),
    Mutant(
        "jax-gather-clips",  # medium, traced
        "backends/jax/markers.py",
        "        mode=lax.GatherScatterMode.FILL_OR_DROP,\n        fill_value=0,\n",
        "        mode=lax.GatherScatterMode.CLIP,\n",
        "jax",
        "In jit an id out of range reads the nearest row in place of zeros: a lookup with such an id.",
    ),
    Mutant(
        "jax-isin-of-nothing",
        "backends/jax/__init__.py",
        "        if not rows.shape[0]:",
        "        if False:",
        "jax",
        "In jit drop_rows of no rows removes row 0.",
    ),
    Mutant(
        "jax-select-keeps-values",  # medium, traced
        "backends/jax/__init__.py",
        "            return kept, jnp.where(keep, indices, sentinel)\n",
        "            return values, jnp.where(keep, indices, sentinel)\n",
        "jax",
        "In jit the slots that are moved to the sentinel keep their values: drop_rows, padding_idx, and raw norms with an "
        "index out of range.",
    ),
    Mutant(
        "jax-round-product-contracted",  # narrow, traced
        "backends/jax/__init__.py",
        "        return precision.apart(jnp.multiply(a, b))\n",
        "        return jnp.multiply(a, b)\n",
        "jax",
        "XLA may contract a product and a sum to one fused operation: in jit, momentum and weight decay of dense steps, "
        "weighted bags and the gradient of their weights, wherever the product is not exact.",
    ),
    # ================================================================== mxnet (3)
    Mutant(
        "mxnet-fold-in-order-of-arrival",  # blatant
        "backends/mxnet/__init__.py",
        "HOST.sum_duplicates(self.to_numpy(values), at, rows)",
        "HOST.sum_duplicates(self.to_numpy(values)[::-1], at, rows)",
        "mxnet",
        "Values and ids meet in another order: every coalesce in mode framework.",
    ),
    Mutant(
        "mxnet-bfloat16-truncates",  # narrow
        "backends/mxnet/__init__.py",
        "        return self.from_host(bfloat16_bits(self.to_numpy(wide)), x)\n",
        "        return self.from_host((self.to_numpy(wide).view(np.uint32) >> 16).astype(np.uint16), x)\n",
        "mxnet",
        "Conversion to bfloat16 truncates as nd.cast does: bfloat16 in mode framework whenever the result must be rounded up.",
    ),
    Mutant(
        "mxnet-float64-number-as-text",  # narrow
        "backends/mxnet/__init__.py",
        'if isinstance(b, float) and math.isfinite(b) and self.dtype(a) == "float32":',
        "if isinstance(b, float) and math.isfinite(b):",
        "mxnet",
        "A Python number goes to MXNet as text, which parses it inexactly: scaling or clipping float64 in mode framework by a "
        "number such as 0.1 or a long quotient.",
    ),
    # ================================================================== numpy (1)
    Mutant(
        "numpy-bfloat16-bits-come-back",  # medium
        "backends/numpy/__init__.py",
        "    def from_host(self, array: Host, like: Array) -> Array:\n"
        "        return array.view(_bfloat16()) if array.dtype == np.uint16 else array\n",
        "    def from_host(self, array: Host, like: Array) -> Array:\n        return array\n",
        "numpy",
        "Results of bfloat16 come back as their uint16 bits: any computed bfloat16 result, no other dtype.",
    ),
    # ================================================================== kernels (6)
    Mutant(
        "kernels-fold-keeps-last",  # blatant
        "islices/kernels/folding.py",
        "                out[row, j] += term(values[p, j], factor)\n",
        "                out[row, j] = term(values[p, j], factor)\n",
        "numpy",
        "The last duplicate is kept in place of the sum: two to four slots of one row (of five, the unrolled part alone is "
        "right).",
    ),
    Mutant(
        "kernels-group-sorted-by-the-last-pair",  # blatant
        "islices/kernels/grouping.py",
        "        ascending &= indices[i - 1] <= x\n",
        "        ascending = indices[i - 1] <= x\n",
        "numpy",
        "Only the last pair decides whether the indices are sorted already: unsorted indices that end with two ascending ones.",
    ),
    Mutant(
        "kernels-norm-cross-term",  # medium
        "islices/kernels/squares.py",
        "                c, d = cut(2.0 * (upper * lower), u, v)\n",
        "                c, d = cut(upper * lower, u, v)\n",
        "numpy",
        "The square of a float64 cut in halves counts the mixed product once: norms of float64 numbers with more than 27 bits "
        "(ord 2), by about 1e-9 of themselves.",
    ),
    Mutant(
        "kernels-fold-pairs-in-the-unrolled-loop",  # narrow
        "islices/kernels/folding.py",
        "                some = (out[row, j] + term(values[p, j], factor)) + term(values[q, j], factor)\n",
        "                some = out[row, j] + (term(values[p, j], factor) + term(values[q, j], factor))\n",
        "numpy",
        "Another order of additions once four more slots of a row are there: five or more duplicates whose sums round.",
    ),
    Mutant(
        "kernels-bfloat16-ties-away",  # narrow
        "islices/kernels/halves.py",
        "    rounded = np.uint32((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16))\n",
        "    rounded = np.uint32((bits + np.uint32(0x8000)) >> np.uint32(16))\n",
        "numpy",
        "bfloat16 rounds ties away from zero in place of to even: a float32 result exactly half way whose lower neighbour is "
        "even, such as 1 + 2^-8.",
    ),
    Mutant(
        "kernels-scatter-rounds-each-contribution",  # narrow
        "islices/kernels/updating.py",
        "                        wide[0, j] = change(wide[0, j], load(values[p, j]))\n",
        "                        wide[0, j] = load(store(change(wide[0, j], load(values[p, j]))))\n",
        "numpy",
        "scatter rounds a 16-bit row after each contribution: float16 or bfloat16 tables with two slots or "
        "more of one row.",
    ),
    # ================================================================== core: clipping, norms
    Mutant(
        "clip-norm-of-raw-duplicates",  # blatant
        "islices/norms/clip_formulas.py",
        "ISLICES = ClipFormula(islices_formula, wide=True)\n",
        "ISLICES = ClipFormula(islices_formula, raw=True, wide=True)\n",
        "numpy",
        "The clip factor comes from the norm of the stored slices: duplicates in clip_by_norm and clip_by_global_norm.",
    ),
    Mutant(
        "clip-mxnet-preset-scales-up",  # blatant
        "islices/norms/clip_formulas.py",
        '    return [("mul", E.minimum(E.div(max_norm, norm + 1e-8), 1.0))]\n',
        '    return [("mul", E.div(max_norm, norm + 1e-8))]\n',
        "numpy",
        "min(1, ...) is missing in the preset of mxnet: clip_by_global_norm(semantics='mxnet') of a norm below max_norm.",
    ),
    Mutant(
        "clip-infinite-norm-gives-zeros",  # narrow
        "islices/norms/clip_formulas.py",
        '    return [("mul", E.where(within, 1.0, factor) + (norm - norm))]\n',
        '    return [("mul", E.where(within, 1.0, factor))]\n',
        "numpy",
        "With an infinity in the gradient (no NaN) finite values become zeros in place of NaN: clips with "
        "nonfinite='propagate'.",
    ),
    Mutant(
        "norm-dtype-of-the-last-leaf",  # narrow
        "islices/norms/norm.py",
        '        dtype = "float64" if seen.dtype == "float64" else dtype\n',
        '        dtype = "float64" if seen.dtype == "float64" else "float32"\n',
        "numpy",
        "The last leaf decides the dtype of a global norm: a tree with a float64 leaf ahead of one of another dtype.",
    ),
    Mutant(
        "norm-gradient-at-zero",  # medium
        "islices/norms/derivatives.py",
        "        return B.where(none, 0.0, B.div(x, B.where(none, 1.0, norm)))\n",
        "        return B.div(x, norm)\n",
        "torch",
        "The gradient of the 2-norm at a gradient of zeros is 0 / 0: differentiating norm (or a row's or sample's) of zeros.",
    ),
    Mutant(
        "max-norm-accepts-nan",  # narrow
        "islices/norms/limits.py",
        "    if not limit >= 0:\n",
        "    if limit < 0:\n",
        "numpy",
        "A check written as < 0 lets NaN through: max_norm=nan must raise ValueError.",
    ),
    # ================================================================== core: slices, indices, ids
    Mutant(
        "indices-coalesced-may-repeat",  # medium
        "islices/core/slices.py",
        "        ascending = view[1:] > view[:-1]\n",
        "        ascending = view[1:] >= view[:-1]\n",
        "numpy",
        "A claim of coalesced is held against ascending, not strictly: sorted indices with a duplicate and coalesced=True must "
        "raise.",
    ),
    Mutant(
        "concat-narrows-indices",  # narrow
        "islices/core/linear.py",
        '            indices = [B.astype(i, "int64") for i in indices]\n',
        '            indices = [B.astype(i, "int32") for i in indices]\n',
        "numpy",
        "int32 and int64 indices join as int32: concat and add of gradients whose index dtypes differ.",
    ),
    Mutant(
        "ids-floats-are-truncated",  # narrow
        "islices/embedding/ids.py",
        "    whole = np.isfinite(flat) & (np.trunc(flat) == flat)\n",
        "    whole = np.isfinite(flat)\n",
        "mxnet",
        "MXNet's float ids, masks and lengths need not be whole: an id of 1.5 must raise TypeError.",
    ),
    Mutant(
        "scatter-update-first-wins",  # medium
        "islices/core/scatter.py",
        '        last = B.segment_max(B.astype(B.arange(values), "int32"), place, count)\n',
        '        last = -B.segment_max(-B.astype(B.arange(values), "int32"), place, B.shape(rows)[0])\n',
        "torch",
        "scatter_update keeps the first slice of a row, not the last: duplicates in mode framework and in traced code (the "
        "host's kernel is right).",
    ),
    # ================================================================== core: embeddings, bags, samples
    Mutant(
        "padding-idx-negative-not-wrapped",  # blatant
        "islices/embedding/lookup_gradients.py",
        "    return p % num_rows\n",
        "    return p\n",
        "numpy",
        "A negative padding_idx does not count from the end: embedding_grad, lookup or drop_padding with padding_idx=-1.",
    ),
    Mutant(
        "bags-ends-belong-to-the-bag-before",  # blatant
        "islices/embedding/layouts.py",
        "        segments = B.searchsorted(ends, B.astype(B.arange(ids), B.dtype(ends)), right=True)\n",
        "        segments = B.searchsorted(ends, B.astype(B.arange(ids), B.dtype(ends)), right=False)\n",
        "numpy",
        "Off by one at every boundary: bags by lengths.",
    ),
    Mutant(
        "bags-mean-counts-all-members",  # medium
        "islices/embedding/bags.py",
        "        total = B.astype(_numbers(B, bags), dtype)\n",
        "        total = B.astype(_numbers(B, bags._replace(keep=None)), dtype)\n",
        "numpy",
        "mean and sqrtn without weights divide by all members of a bag: any with padding, a mask or absent ids.",
    ),
    Mutant(
        "bags-max-tie-to-the-last",  # medium
        "islices/embedding/bags.py",
        '    place = -B.astype(B.arange(x), "int32")\n',
        '    place = B.astype(B.arange(x), "int32")\n',
        "torch",
        "The gradient of a max goes to the last of equal members: bags in which the maximum occurs twice (the same id, say).",
    ),
    Mutant(
        "bags-max-ignores-mask",  # narrow
        "islices/embedding/bags.py",
        "    out = _maximum(B, x, bags) if ",
        "    out = _maximum(B, x, bags._replace(keep=None)) if ",
        "numpy",
        "Masked, padding and absent members count as zeros for max alone: a bag with such a member whose other members are "
        "negative.",
    ),
    Mutant(
        "frequency-by-reciprocal",  # narrow
        "islices/embedding/lookup_gradients.py",
        "    return B.astype(B.div(wide, B.astype(B.as_column(counts, wide), B.dtype(wide))), dtype)\n",
        "    return B.astype(\n"
        "        B.round_product(wide, B.div(1.0, B.astype(B.as_column(counts, wide), B.dtype(wide)))), dtype\n"
        "    )\n",
        "numpy",
        "Two roundings in place of one: scale_by_freq with an id that occurs three times (or another number that is no power "
        "of two).",
    ),
    Mutant(
        "per-sample-row-0-of-the-sample-before",  # medium
        "islices/embedding/per_sample.py",
        "place = B.astype(B.searchsorted(starts, keys, right=True), B.dtype(keys))",
        "place = B.astype(B.searchsorted(starts, keys, right=False), B.dtype(keys))",
        "numpy",
        "Samples mix at their boundary: the slice of row 0 counts for the sample before (the first one's for the last), "
        "per-sample norms and clips of several samples that name row 0 beside others.",
    ),
    Mutant(
        "tied-table-rows-counted-twice",  # medium
        "islices/embedding/products.py",
        "        part[:, known[first:last] - start] = 0.0\n",
        "",
        "numpy",
        "The dense part of rows that slices name is counted twice: per-sample norms of a tied table (product=) with slices.",
    ),
    # ================================================================== core: optimizers
    Mutant(
        "adam-eps-inside-the-root",  # medium
        "islices/optim/records/adam.py",
        "    spread = (sqrt(square) if root is None else div(sqrt(square), root)) + eps\n",
        "    spread = sqrt(square + eps) if root is None else div(sqrt(square + eps), root)\n",
        "numpy",
        "eps stands under the root of adam and adamw: eps that is not small next to the mean of squares, or float64.",
    ),
    Mutant(
        "sgd-nesterov-dampens-the-gradient",  # narrow
        "islices/optim/records/sgd.py",
        "            step = g + mul(mu, momentum)\n",
        "            step = mul(gain, g) + mul(mu, momentum)\n",
        "numpy",
        "The gradient outside of the buffer is dampened too: sgd with momentum, nesterov=True and dampening not 0.",
    ),
    Mutant(
        "optimizer-all-rows-ignores-frozen",  # medium
        "islices/optim/fused.py",
        "skip = np.union1d(skip, request.frozen)",
        "pass",
        "numpy",
        "Frozen rows move where all rows do: rows='all' with momentum or decay, or a dense gradient, and frozen=.",
    ),
    Mutant(
        "optimizer-empty-gradient-is-no-step",  # narrow
        "islices/optim/fused.py",
        "    step[0] = step[0] + 1\n",
        "    step[0] = step[0] + int(len(x.gradient[0]) > 0)\n",
        "numpy",
        "The step is not counted for a gradient without slices: state['step'] after an empty gradient, and bias corrections "
        "thereafter.",
    ),
]

#: Faults in code that the suite does not reach; `shown_by` is the file with a test that fails with the fault.
OF_TESTS = [
    Mutant(
        "torch-step-taken-on-overflow",
        "backends/torch/optim/base.py",
        "is not None and found.item():",
        "is not None and not found.item():",
        "tests/backends/torch/test_optim_training.py",
        "GradScaler's found_inf read the wrong way: a step with infinite gradients is taken.",
    ),
    Mutant(
        "torch-ddp-adds-and-does-not-divide",
        "backends/torch/ddp.py",
        'all_reduce(gradient, "mean", group',
        'all_reduce(gradient, "sum", group',
        "tests/backends/torch/test_ddp.py",
        "DDP's gradients are means over ranks; the sparse ones become sums.",
    ),
    Mutant(
        "torch-sparse-momentum-stays-sparse",
        "backends/torch/optim/states.py",
        "x.detach().to_dense() if isinstance(x, Tensor) and x.layout is torch.sparse_coo else x",
        "x.detach() if isinstance(x, torch.Tensor) else x",
        "tests/backends/torch/test_optim_state.py",
        "The momentum of torch's SGD is sparse after a first sparse gradient: another front cannot start from it.",
    ),
    Mutant(
        "torch-reads-count-from-the-end",
        "backends/torch/sparse_reads.py",
        "torch.where(ids < 0, ids + count, ids)), ids",
        "ids), ids",
        "tests/backends/torch/test_reads.py",
        "w[-1] reads the last row: its gradient is of row count - 1, not of row -1.",
    ),
    Mutant(
        "torch-bag-with-sparse-max",
        "backends/torch/sparse_reads.py",
        'if given.get("mode") == "max" or',
        "if",
        "tests/backends/torch/test_reads.py",
        "torch's embedding_bag has no sparse gradient for the largest of a bag: such a read must stay dense.",
    ),
    Mutant(
        "tensorflow-variable-twice-is-one",
        "backends/tensorflow/tapes.py",
        "if isinstance(own, tf.Tensor) or id(own) in taken:",
        "if isinstance(own, tf.Tensor):",
        "tests/backends/tensorflow/test_lookups.py",
        "A variable that is given twice gets the gradient of both places in each.",
    ),
    Mutant(
        "tensorflow-ids-as-they-are-later",
        "backends/tensorflow/tapes.py",
        "(rows, tf.identity(ids), extras, static)",
        "(rows, ids, extras, static)",
        "tests/backends/tensorflow/test_lookups.py",
        "A variable of ids changes within the function: the gradient names the rows of its last value.",
    ),
    Mutant(
        "ranks-round-each-partial-sum",
        "islices/distributed/exchange.py",
        "            total = total + HOST.widen(block)\n",
        "            total = HOST.widen(HOST.astype(total + HOST.widen(block), dtype_name(block.dtype)))\n",
        "tests/islices/distributed/test_ranks.py",
        "Dense sums of 16-bit values are rounded after each rank, and not once.",
    ),
    Mutant(
        "ranks-count-replicated-leaves-each",
        "islices/distributed/norms.py",
        "(shared if every else own).append",
        "(own if every else own).append",
        "tests/islices/distributed/test_norms.py",
        "replicated= is read and not heeded: the norm counts a dense gradient once a rank.",
    ),
    Mutant(
        "sharded-padding-of-two-ranks",
        "islices/distributed/sharded.py",
        "start <= self.padding_idx < stop",
        "start <= self.padding_idx <= stop",
        "tests/islices/distributed/test_sharded_table.py",
        "A padding row at the edge belongs to two shards, one of which has no such row.",
    ),
    Mutant(
        "jax-branches-return-one-table",
        "backends/jax/plans.py",
        "ms[0] if ms.count(ms[0]) == len(ms) else None for ms in",
        "ms[0] for ms in",
        "tests/backends/jax/test_gathers.py",
        "Branches that return different tables: the gradient of what is read from the result goes to the first.",
    ),
    Mutant(
        "jax-scans-forwards",
        "backends/jax/plans.py",
        'for key in ("reverse", "length", "unroll"))',
        'for key in ("length", "unroll"))',
        "tests/backends/jax/test_gathers.py",
        "A scan that runs from the end is evaluated again from the beginning: its carry has other values.",
    ),
    Mutant(
        "jax-fill-value-before-the-cast",
        "backends/jax/row_reads.py",
        "    return bool(value == 0 or np.isnan(value))\n",
        "    return True\n",
        "tests/backends/jax/test_gathers.py",
        "An id out of range fills with a number that the table's type does not hold.",
    ),
    Mutant(
        "jax-slice-behind-the-end",
        "backends/jax/row_reads.py",
        "jnp.clip(_signed(starts[0], dtype), 0, shape[0] - count)",
        "_signed(starts[0], dtype)",
        "tests/backends/jax/test_gathers.py",
        "lax.dynamic_slice moves a start so that the slice fits: the rows are others than start + iota.",
    ),
    Mutant(
        "influence-seen-in-nan",
        "islices/embedding/autodiff.py",
        "    return (x != 0) & ~np.isnan(x)\n",
        "    return x != 0\n",
        "tests/islices/embedding/test_value_and_grad.py",
        "A gradient that is NaN in every sample is taken for influence of one sample on others.",
    ),
    Mutant(
        "auto-marks-what-does-not-pay",
        "islices/embedding/marking.py",
        "sparse == ALWAYS or reads < rows",
        "sparse == ALWAYS or reads <= rows",
        "tests/islices/embedding/test_value_and_grad.py",
        'sparse="auto" makes slices of a table of which as many rows are read as it has.',
    ),
    Mutant(
        "file-with-an-array-too-many",
        "islices/files/manifest.py",
        '    if len(held) != len(found["arrays"]) or held.keys() != archive.arrays.keys():\n',
        '    if len(held) != len(found["arrays"]):\n',
        "tests/islices/files/test_io.py",
        "An array that the manifest does not name is no damage any more.",
    ),
]
