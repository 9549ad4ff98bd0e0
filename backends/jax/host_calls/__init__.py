"""Host calls: jitted programs on CPU call compiled kernels through one handler of XLA's C API.

An operation that a training step spends its time in (sums of rows, bags, norms, optimizers' steps) is one primitive
(`primitive`). Lowered for CPU, it is a custom call of the target "islices", with a number as its attribute. The handler
(`ffi`) finds the Python function of that number and calls it on NumPy views of XLA's buffers, without a copy. The
functions (`row_calls`) run the kernels of `islices.kernels.operations`, which eager code runs as well.

It relies on of XLA's C API (xla/ffi/api/c_api.h, in `jax.ffi.include_dir()`):

- the positions of the call frame's words: the extension, the API's functions, operands, results and attributes;
- of a buffer the position of its address; shapes and dtypes are known when the program is lowered;
- that a handler which is asked for metadata answers with a version, and that XLA refuses one with another major version
  when the target is registered. Then islices warns once, and XLA's operations compute the same bits;
- that a handler may run in any thread, which takes Python's lock for it. JAX holds the lock nowhere while it waits.

XLA's operations run as well where there is no numba, within ``use_kernels(False)`` or ``execution("framework")`` at the
time of tracing, under vmap, in exported programs, on other platforms, and for few elements (`row_calls.FEW`).
"""
