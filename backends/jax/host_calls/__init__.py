"""Host calls: jitted programs on CPU call compiled kernels through XLA's C API, without Python, its lock or a copy.

The costly operations of a training step (sums of rows, bags, norms, optimizers' steps) are primitives (`primitive`). On
CPU each primitive is lowered to a few custom calls (`row_calls`). numba compiles a handler for each call (`parts`), so
no C compiler is needed. The handler reads XLA's call frame and shares the work among XLA's threads (`frames`).

The code relies on these properties of XLA's C API (xla/ffi/api/c_api.h, in `jax.ffi.include_dir()`):

- The positions of words in the call frame: the extension, the API's functions, the context, operands, results and
  attributes. Attributes are numbers, sorted by their names.
- The positions of a buffer's address and dimensions; dtypes are known when the program is lowered.
- The arguments of two functions: one gives a task to XLA's threads, the other releases the error of a rejected task.
- A handler may run in any thread, and XLA runs it only while its buffers are valid.
- XLA calls each handler for metadata, and the handler reports the version of the API that it uses. When the handler is
  registered, XLA raises if the major version differs from XLA's.

The version is checked once, when a program is first traced (`parts.available`). If XLA rejects the version, islices
warns once, and XLA's operations compute the same bits. XLA's operations also run without numba, under vmap, in exported
programs, on other platforms, and if the program is traced within ``use_kernels(False)`` or ``execution("framework")``.
"""
