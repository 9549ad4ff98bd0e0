"""The contract of an adapter: its primitives, and their requirements.

The core is written once, with these primitives, and imports no framework but NumPy. An adapter implements the methods
of `Backend` for a framework's arrays. `Backend` consists of parts for arrays, memory, rows and gradients, and of a part
for the conformance suite and the command line. Each part is a class in a separate module. May import:
`islices.backend`.

How to read the contracts
    Array arguments are dense arrays of the adapter's framework. The core applies only Python's operators ``+ - *`` and
    unary minus to arrays. In differentiation, and in distributed programs, the core also slices arrays along the first
    axis. Division, square root and comparison are primitives, since their results differ between frameworks. A mask is
    any object that the adapter's `where`, `select`, `logical_not`, `astype`, `reshape` and `as_column` accept. If a
    primitive gets a Python number with a float64 array, the primitive must not narrow the number. A dtype is given by
    its NumPy name ("float32", "bfloat16", "int64"). Shapes are tuples of ints; in traced code a dimension may be None.
    Unless a method says otherwise, ``like`` is an array that determines only the device of the result. An adapter may
    leave out a method under ``@optional``; the mark describes the consequence.

Stages
    1. The methods without a mark: arrays, and their conversion to the host and back. These methods suffice for mode
       host.
    2. Tables that change in place: `Memory` and `RowPrimitives.set_rows`.
    3. The framework's operations: every method under ``@primitive``. In mode host, NumPy computes a method that the
       adapter lacks; in mode framework, the suite lists the method as missing.
    4. The framework's sparse objects: `is_native`, `from_native`, `to_native`.
    5. Gradients: `Gradients`.
    6. The methods of `ForTheSuite`: a compiler (mode traced), devices, the framework's calls.
"""

from __future__ import annotations

import importlib
from typing import ClassVar

from islices.backend.arrays import Arrays, LoopState
from islices.backend.contract import (
    FLOATS,
    INDEX_NAMES,
    INDICES,
    INTEGERS,
    TO_DO,
    Array,
    Host,
    Shape,
    declared,
    not_implemented,
    optional,
    primitive,
)
from islices.backend.gradients import (
    Differentiated,
    Gradient,
    GradientOfValue,
    Gradients,
    LayerUse,
    LookedUp,
    OtherUse,
    ProductUse,
    Reader,
    SampleLoss,
    Source,
    TableUse,
    TapeRecorder,
    Transform,
    Use,
    WholeUse,
)
from islices.backend.memory import Look, Memory, Opened, elements_meet, view_span
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
    "Differentiated",
    "ForTheSuite",
    "Gradient",
    "GradientOfValue",
    "Gradients",
    "Host",
    "LayerUse",
    "Look",
    "LookedUp",
    "LoopState",
    "Memory",
    "NativeParts",
    "Opened",
    "OtherUse",
    "ProductUse",
    "RaggedParts",
    "Reader",
    "RowPrimitives",
    "SampleLoss",
    "Shape",
    "Slots",
    "Source",
    "TableUse",
    "TapeRecorder",
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

#: The version of this protocol. The number grows when a required primitive is added, or a primitive's contract changes.
#: An adapter states the version for which it was written; for any other version, the registry raises ImportError.
PROTOCOL = 3


class Backend(Memory, RowPrimitives, Gradients, ForTheSuite):
    """The adapter of one framework. Subclass this class, implement the primitives, and register an instance as an
    entry point of the group ``islices.backends``.

    Attributes
    ----------
    name : str
        The framework's name, which messages show. For built-in backends, `get_backend` accepts this name.
    module : str
        The name of the framework's module, which is also the name of a plug-in's entry point.
    protocol : int
        The version of this protocol for which the adapter was written.

    Notes
    -----
    Together the primitives must fulfil SPEC clauses 1 to 20, which the conformance suite checks. The parts, in
    `islices.backend.PARTS`, have more attributes and methods.

    Examples
    --------
    >>> import islices
    >>> islices.get_backend("numpy").modes()
    ['host']
    """

    module: ClassVar[str]
    protocol: ClassVar[int] = PROTOCOL

    def __repr__(self) -> str:
        return f"<islices backend {self.name}>"

    @optional("the module's `__version__`")
    def version(self) -> str:
        """Return the framework's version."""
        return str(getattr(importlib.import_module(self.module), "__version__", "unknown"))

    def is_array(self, x: object) -> bool:
        """Return True if x is a dense array of this framework; variables and parameters count as arrays."""
        raise self._missing("is_array")


#: the parts of `Backend`, in the order to read and to write them
PARTS = (Arrays, Memory, RowPrimitives, Gradients, ForTheSuite)
