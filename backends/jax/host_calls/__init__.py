"""Host calls: jitted programs on CPU call compiled kernels through XLA's C API, without Python, its lock or a copy.

The costly operations of a training step (sums of rows, bags, norms, optimizers' steps) are primitives (`primitive`).
Lowered for CPU (`row_calls`), each becomes a few custom calls. numba compiles a handler for each (`parts`), so no C
compiler is needed. The handler reads XLA's call frame and shares the work among XLA's threads (`frames`).

It relies on these properties of XLA's C API (xla/ffi/api/c_api.h, in `jax.ffi.include_dir()`):

- The positions of the call frame's words: the extension, the API's functions, the context, operands, results and
  attributes. Attributes are numbers in the order of their names.
- The positions of a buffer's address and dimensions; dtypes are known when the program is lowered.
- The arguments of two functions: one gives a task to XLA's threads, the other releases the error of a rejected task.
- A handler may run in any thread, and XLA runs it only while its buffers are valid.
- XLA calls each handler for metadata, and the handler returns a version. XLA rejects another major version when the
  target is registered.

The version is checked once, when a program is first traced (`parts.available`). If XLA rejects it, islices warns once,
and XLA's operations compute the same bits. They also run without numba, under vmap, in exported programs and on other
platforms. The same holds within ``use_kernels(False)`` or ``execution("framework")`` at the time of tracing.
"""
