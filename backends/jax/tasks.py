"""A handler's work in parts, which XLA's own threads share with the thread that called it.

Parts are claimed one by one from a *block*, a few words of memory of which each thread that knows it holds a reference,
the last one frees it. The caller works too, and waits only for parts that have begun: where all of XLA's threads are
within handlers the tasks begin late, or never, which costs speed and nothing else. A part writes what no other one
does, or adds integers, so bits do not depend on the number of threads, which is that of
`islices.kernels.threads` when the program runs. May import: `llvmlite`, `numba`, `islices.backends.jax.frames`,
`islices.kernels.compiling`, `islices.kernels.threads`.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import typing as signatures
from numba.extending import intrinsic

from islices.backends.jax.frames import API, CONTEXT, word
from islices.kernels import threads
from islices.kernels.compiling import compile_callback, fingerprint, inline

__all__ = ["add_atomically", "compile_task", "num_threads"]

# ---------------------------------------------------------------------- words of a block
#: Those who know the block; the next part and how many have ended; how many there are; what a part is given.
REFERENCES, NEXT, ENDED, PARTS, FRAME, CALL, WORDS = range(7)
#: XLA_FFI_Api
DESTROY_ERROR, SCHEDULE = 8, 17
#: The arguments of both, in words, the first of which is their size in bytes.
SCHEDULE_ARGUMENTS, DESTROY_ARGUMENTS = 5, 3

_WORD = ir.IntType(64)
#: The number of threads, as compiled code finds it in any process.
_THREADS = "islices_num_threads"
binding.add_symbol(_THREADS, threads.address())


@intrinsic  # type: ignore[untyped-decorator]
def add_atomically(context: Any, address: Any, position: Any, value: Any) -> Any:
    """Add to the word at a position from an address, and give what it was; all that was written before is seen by whom
    sees the sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(builder.inttoptr(arguments[0], _WORD.as_pointer()), [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _write(context: Any, address: Any, position: Any, value: Any) -> Any:
    """Set the word at a position from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(arguments[2], builder.gep(start, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _words(context: Any) -> Any:
    """The address of a few words that last as long as this call."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        with builder.goto_entry_block():
            return builder.ptrtoint(builder.alloca(_WORD, 8), _WORD)

    return types.int64(), generate


@intrinsic  # type: ignore[untyped-decorator]
def _call(context: Any, function: Any, argument: Any) -> Any:
    """Call a C function at an address, of an address to a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])

    return types.int64(types.int64, types.int64), generate


def _symbol(name: str) -> Any:
    """What gives the address that has been registered under a name: code that is kept on disk finds it anew."""

    def address(context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            known = builder.module.globals.get(name) or ir.GlobalVariable(builder.module, ir.IntType(8), name)
            return builder.ptrtoint(known, _WORD)

        return types.int64(), generate

    address.__name__ = name  # by which code on disk is told from other
    return intrinsic(address)


_place_of_threads = _symbol(_THREADS)
if sys.platform != "win32":
    _malloc = types.ExternalFunction("malloc", signatures.signature(types.intp, types.intp))
    _free = types.ExternalFunction("free", signatures.signature(types.void, types.intp))
    _yield = types.ExternalFunction("sched_yield", signatures.signature(types.int32))
else:  # nothing is shared

    @inline
    def _malloc(size: int) -> int:
        return 0

    @inline
    def _free(block: int) -> None:
        pass

    @inline
    def _yield() -> int:
        return 0


@inline
def num_threads() -> int:
    """In how many threads kernels run, now."""
    return word(_place_of_threads(), 0)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- what the threads run
def _task(block: Any) -> Any:
    """Run parts of a block until all are claimed: what XLA's threads are given, and the caller runs as well."""
    k = add_atomically(block, NEXT, 1)
    while k < word(block, PARTS):
        part(word(block, FRAME), word(block, CALL), k, word(block, PARTS))
        add_atomically(block, ENDED, 1)
        k = add_atomically(block, NEXT, 1)
    if add_atomically(block, REFERENCES, -1) == 1:
        _free(block)
    return 0


part: Any = None  # (frame, call, k, parts): what `_task` leaves open


def _run_parts(frame: Any, call: Any, parts: Any) -> None:
    """The task's parts of one call, in as many threads as are set."""
    helpers, block = min(parts, num_threads()) - 1, 0
    if helpers > 0:
        block = _malloc(8 * WORDS)
    if block == 0:
        block, helpers = _words(), 0
    # the caller's for the task, and for the wait below: on the stack that is never given back
    _write(block, REFERENCES, helpers + 2)
    _write(block, NEXT, 0)
    _write(block, ENDED, 0)
    _write(block, PARTS, parts)
    _write(block, FRAME, frame)
    _write(block, CALL, call)
    given = 0
    while given < helpers and _scheduled(frame, task(), block):
        given += 1
    if given < helpers:  # no reference of ours is the last
        add_atomically(block, REFERENCES, given - helpers)
    _call(task(), block)
    if helpers > 0:
        while add_atomically(block, ENDED, 0) < parts:
            _yield()
        if add_atomically(block, REFERENCES, -1) == 1:
            _free(block)


@inline
def _scheduled(frame: int, task: int, block: int) -> bool:
    """Whether one of XLA's threads is to run the task, at its address, of a block."""
    given, api = _words(), word(frame, API)
    _write(given, 0, 8 * SCHEDULE_ARGUMENTS)
    _write(given, 1, 0)
    _write(given, 2, word(frame, CONTEXT))
    _write(given, 3, task)
    _write(given, 4, block)
    error = _call(word(api, SCHEDULE), given)
    if error != 0:  # there are no threads
        _write(given, 0, 8 * DESTROY_ARGUMENTS)
        _write(given, 1, 0)
        _write(given, 2, error)
        _call(word(api, DESTROY_ERROR), given)
    return error == 0  # type: ignore[no-any-return]


task: Any = None  # the address of the task: what `_run_parts` leaves open


def compile_task(part: Any, **names: Any) -> tuple[Any, Any]:
    """(the compiled task of a part, which must be kept, and ``run_parts(frame, call, parts)`` for its handler). names
    are what the template of the part leaves open."""
    bound = inline(part, **names)
    compiled = compile_callback(_task, types.int64(types.int64), part=bound)
    name = f"islices_task_{fingerprint({'part': bound})}"
    binding.add_symbol(name, compiled.address)
    return compiled, inline(_run_parts, task=_symbol(name))
