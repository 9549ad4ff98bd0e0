"""The contract of an adapter: its primitives, each with its requirements.

Everything the library does is written once, on top of these. An adapter gives a framework's arrays the
names below; the core never imports a framework and never asks which one it has in hand. `Backend` is made of parts, a
module each: arrays, memory, rows, gradients, and what only the conformance suite asks for. An adapter can be read
beside this folder and nothing else.
May import: `islices.backend`.

How to read the contracts
    Array arguments are dense arrays of the adapter's framework. The core itself uses Python's operators
    ``+ - *`` and unary minus on them, and nothing else: division, square root and comparison are primitives, since
    frameworks do not agree on them. Masks are whatever the adapter's own `where` and `select` take.
    In float64 arithmetic it does so with arrays alone: a compiler may narrow a Python number beside them.
    A dtype is its NumPy name ("float32", "bfloat16", "int64"). Shapes are tuples of ints; in traced code a
    dimension may be None. ``like`` is an array whose device (and only that) the result shares.
    A method under ``@optional`` may be left out, and the mark says what holds then.

Stages
    1. The methods without a mark: arrays, and the way to the host and back. Mode host conforms with these alone.
    2. Tables that change in place: `Memory` and `RowPrimitives.set_rows`.
    3. The framework's own operations: every method under ``@primitive``. In mode host the host stands in for one that
       is missing; in mode framework the suite lists it as to be written.
    4. The framework's sparse objects: `is_native`, `from_native`, `to_native`.
    5. Gradients: `Gradients`.
    6. What `ForTheSuite` has: a compiler (mode traced), devices, the framework's own calls.
"""

from __future__ import annotations

from typing import ClassVar

from islices.backend.arrays import Arrays
from islices.backend.contract import (
    FLOATS,
    INDEX_NAMES,
    INDICES,
    INTEGERS,
    TO_DO,
    Array,
    declared,
    not_implemented,
    optional,
    primitive,
)
from islices.backend.gradients import (
    Gradient,
    GradientOfValue,
    Gradients,
    LayerUse,
    LookedUp,
    OtherUse,
    ProductUse,
    Reader,
    Source,
    TableUse,
    Transform,
    Use,
    WholeUse,
)
from islices.backend.memory import Look, Memory, elements_meet, view_span
from islices.backend.row_primitives import NativeParts, RaggedParts, RowPrimitives, Slots
from islices.backend.suite import ForTheSuite

__all__ = [
    "FLOATS",
    "INDEX_NAMES",
    "INDICES",
    "INTEGERS",
    "PARTS",
    "PROTOCOL",
    "TO_DO",
    "Array",
    "Arrays",
    "Backend",
    "ForTheSuite",
    "Gradient",
    "GradientOfValue",
    "Gradients",
    "LayerUse",
    "Look",
    "LookedUp",
    "Memory",
    "NativeParts",
    "OtherUse",
    "ProductUse",
    "RaggedParts",
    "Reader",
    "RowPrimitives",
    "Slots",
    "Source",
    "TableUse",
    "Transform",
    "Use",
    "WholeUse",
    "declared",
    "elements_meet",
    "not_implemented",
    "optional",
    "primitive",
    "view_span",
]

#: Version of this protocol. It grows when a primitive is added or its contract changes; an adapter states the
#: version it was written for, and the registry refuses any other.
PROTOCOL = 3


class Backend(Memory, RowPrimitives, Gradients, ForTheSuite):
    """The adapter of one framework. Subclass it, fill in the primitives, and register the module.

    Attributes
    ----------
    name : str
        The framework's name, as given to ``get_backend``.
    module : str
        The module whose import means that the framework is in use.
    pip : str
        The line that installs it, for error messages.
    protocol : int
        The version of this protocol the adapter was written for.

    Notes
    -----
    What the primitives must add up to is SPEC clauses 1 to 20, which the conformance suite checks. The parts, in
    `islices.backend.PARTS`, have attributes and methods of their own.

    Examples
    --------
    >>> import islices
    >>> islices.get_backend("numpy").modes()
    ['host']
    """

    module: ClassVar[str]
    pip: ClassVar[str] = ""
    protocol: ClassVar[int] = PROTOCOL

    def __repr__(self) -> str:
        return f"<islices backend {self.name}>"

    def version(self) -> str:
        """The framework's version."""
        raise self._missing("version")

    def is_array(self, x: object) -> bool:
        """Whether x is a dense array of this framework (a variable or parameter counts)."""
        raise self._missing("is_array")


#: What `Backend` is made of, in the order to read and to write them.
PARTS = (Arrays, Memory, RowPrimitives, Gradients, ForTheSuite)
