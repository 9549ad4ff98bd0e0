"""Host calls: jitted programs on CPU call compiled kernels through XLA's C API, without Python, its lock or a copy.

An operation that a training step spends its time in (sums of rows, bags, norms, optimizers' steps) is one primitive
(`primitive`). Lowered for CPU (`row_calls`), it is a few custom calls. numba compiles a handler of each (`parts`), so
no C compiler is needed. The handler reads XLA's call frame and shares the work among XLA's threads (`frames`).

It relies on of XLA's C API (xla/ffi/api/c_api.h, in `jax.ffi.include_dir()`):

- the positions of the call frame's words: the extension, the API's functions, the context, operands, results and
  attributes, which are numbers in the order of their names;
- of a buffer the positions of its address and its dimensions; dtypes are known when the program is lowered;
- the arguments of two functions: one gives a task to XLA's threads, the other ends the error of one that is refused;
- that a handler may run in any thread, and that XLA runs handlers only while their buffers are its own;
- that a handler which is asked for metadata answers with a version, and that XLA refuses one with another major version
  when the target is registered.

The version is checked once, when a program is first traced (`parts.available`). Where XLA refuses it, islices warns
once, and XLA's operations compute the same bits. They run as well where there is no numba, within
``use_kernels(False)`` or ``execution("framework")`` at the time of tracing, under vmap, in exported programs, and on
other platforms.
"""
