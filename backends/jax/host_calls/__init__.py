"""Let jitted programs on CPUs make host calls, which call compiled kernels through XLA's C API without copies or
Python's lock.

In traced programs that may call kernels, one JAX primitive (`primitive`) stands for sums of duplicate rows, sums within
bags, norms, and optimizer steps. On CPUs, JAX lowers the equation to a few custom calls (`row_calls`). numba compiles a
handler for each kind of call (`parts`), so no C compiler is needed. The handler reads XLA's call frame, and distributes
the work over XLA's threads (`frames`).

The code relies on the following properties of XLA's C API (xla/ffi/api/c_api.h in `jax.ffi.include_dir()`):

- In the call frame, the extension, the functions of the API, the context, operands, results and attributes are at fixed
  positions. Attributes are sorted by their names; all attributes of these calls are numbers.
- A buffer contains its address and its dimensions at fixed positions. Dtypes are known when the program is lowered.
- Two functions have fixed arguments: one passes a task to XLA's threads, the other releases the error of a rejected
  task.
- A handler may run in any thread, and XLA runs it only while its buffers are valid.
- XLA also calls each handler for metadata, and the handler then reports the version of the API that it uses. When a
  handler is registered, XLA raises an error if the major version is not the same as XLA's.

The version is checked once, when the first program that could call kernels is traced (`parts.available`). If XLA
rejects the version, islices warns once, and XLA's operations compute the same bits. XLA's operations are also used
without numba, under vmap, in exported programs, on other platforms, and for tables on several devices. The same is true
if the program is traced within ``use_kernels(False)`` or ``execution("framework")``.
"""
