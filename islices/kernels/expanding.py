"""Inline functions into a kernel's source before numba compiles the kernel.

numba can inline too (``inline="always"``), but copies a whole scope of its intermediate representation for each block.
These copies took a third of a kernel's compilation time. This module rewrites the syntax tree instead. The module
replaces a call with assignments of the arguments, the function's statements with renamed variables, and the returned
value. numba inlines the calls that this module cannot replace, with the same result. Examples are calls of functions
without source, with several returns or with nested scopes, and calls in expressions that are not always evaluated. A
function called in an expression runs before the rest of the statement, so it must not change variables that the rest
reads. May import: `islices.core.locks`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import linecache
from collections.abc import Callable, Collection, Mapping
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from islices.core.locks import Lock

#: nodes that have a scope, or whose meaning depends on names; a function that contains such a node is not inlined
_SCOPES = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension, ast.NamedExpr, ast.Global,
    ast.Nonlocal, ast.Match, ast.Try, ast.With, ast.Import, ast.ImportFrom, ast.Delete,
)  # fmt: skip

#: Python 3.11 before 3.11.9 and Python 3.12 before 3.12.3 count the depth of syntax trees for all threads together: if
#: two threads make trees at once, SystemError may be raised.
_parsing = Lock()


class Definition(NamedTuple):
    """The parts of the source of a function or a lambda."""

    name: str
    arguments: tuple[str, ...]
    body: list[ast.stmt]
    stored: frozenset[str]  # the names that the body assigns to


def expand(
    function: FunctionType,
    inlined: Callable[[Any], FunctionType | None],
    arguments: tuple[str, ...] | None = None,
    constants: Mapping[str, bool | None] | None = None,
) -> FunctionType:
    """Return the function with calls of inlined functions replaced by the statements of these functions.

    `inlined(x)` returns the Python function of `x` if `x` is to be inlined, else None. Names whose value is a bool are
    flags: branches that a flag excludes are dropped. `arguments`, if given, is the order of the result's parameters;
    `constants` contains the values of all other parameters. A function that cannot be rewritten is returned unchanged.
    """
    with _parsing:
        definition = _definition(function)
        if definition is None or (function.__defaults__ and arguments is None):
            return function
        writer = _Writer(inlined, definition.stored.union(definition.arguments))
        given: dict[str, ast.expr] = {name: ast.Name(name, ast.Load()) for name in writer.own}
        given |= {name: ast.Constant(value) for name, value in (constants or {}).items()}
        body = writer.body(definition, function, given) or [ast.Pass()]
        signature = ast.arguments(
            [], [ast.arg(name) for name in arguments or definition.arguments], None, [], [], None, []
        )
        header = ast.FunctionDef(definition.name, signature, body, [])
        for node in ast.walk(header):  # line numbers of other files have no meaning in this file
            if "lineno" in node._attributes:
                ast.copy_location(node, definition.body[0])
        made: dict[str, Any] = {}
        code = compile(ast.fix_missing_locations(ast.Module([header], [])), function.__code__.co_filename, "exec")
        exec(code, writer.globals, made)
        written: FunctionType = made[definition.name]
        written.__module__ = function.__module__
        written.__dict__["template"] = function
        return written


def has_source(function: Callable[..., Any]) -> bool:
    """Return True if `expand` can rewrite a function."""
    with _parsing:
        return isinstance(function, FunctionType) and _definition(function) is not None


class _Writer:
    """The state of one rewriting of a function. `globals` contains the global names used so far, and `own` contains the
    local names."""

    def __init__(self, inlined: Callable[[Any], FunctionType | None], own: Collection[str]) -> None:
        self.inlined, self.own = inlined, own
        self.globals: dict[str, Any] = {}
        self.count = 0

    def body(self, definition: Definition, function: FunctionType, given: Mapping[str, ast.expr]) -> list[ast.stmt]:
        """Return the statements of a function with its local names replaced by the expressions in `given`."""
        named = _Names(self, {**vars(builtins), **function.__globals__, **enclosed_by(function)}, given)
        return self.block(named.statements(definition.body))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [out for statement in statements for out in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the statements that replace one statement: the statements of the inlined calls, then the statement
        itself."""
        before: list[ast.stmt] = []
        if isinstance(node, ast.If):
            node.test = self.expression(node.test, before)
        elif isinstance(node, ast.For):
            node.iter = self.expression(node.iter, before)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Return) and node.value is not None:
            node.value = self.expression(node.value, before)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Name):
                return before  # for a call without a value
        if isinstance(node, ast.If | ast.For | ast.While):
            node.body, node.orelse = self.block(node.body) or [ast.Pass()], self.block(node.orelse)
        return [*before, node]

    def expression(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """Return the expression with inlined calls replaced by their values; add the calls' statements to `before`."""
        if isinstance(node, ast.IfExp | ast.BoolOp) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            return node  # a part that is not always evaluated stays in place
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, before))
            elif isinstance(value, list):
                value[:] = [self.expression(x, before) if isinstance(x, ast.expr) else x for x in value]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            called = self.inlined(self.globals.get(node.func.id))
            if called and not any(isinstance(x, ast.Starred) for x in node.args):
                return self.call(called, node, before)
        return node

    def call(self, function: FunctionType, node: ast.Call, before: list[ast.stmt]) -> ast.expr:
        """Return the expression for the value of an inlined call, and add the statements of the call to `before`.

        A call that cannot be inlined is returned unchanged.
        """
        definition = _definition(function)
        if definition is None or not _ends_once(definition) or len(definition.arguments) != len(node.args):
            return node
        given: dict[str, ast.expr] = {name: self.fresh(name) for name in sorted(definition.stored)}
        for name, argument in zip(definition.arguments, node.args, strict=True):
            if name in given or not isinstance(argument, ast.Name | ast.Constant):
                given.setdefault(name, self.fresh(name))
                before.append(ast.Assign([_stored(given[name])], argument))
            else:
                given[name] = argument
        statements = self.body(definition, function, given)
        last = statements.pop() if statements and isinstance(statements[-1], ast.Return) else None
        before += statements
        return last.value if isinstance(last, ast.Return) and last.value else ast.Constant(None)

    def fresh(self, name: str) -> ast.expr:
        """Return an expression that reads a new local name, which begins with `name`."""
        self.count += 1
        while f"{name}__{self.count}" in self.own:
            self.count += 1
        return ast.Name(f"{name}__{self.count}", ast.Load())


class _Names(ast.NodeTransformer):
    """A transformer that renames a function's local names, makes its global names distinct, and evaluates flags."""

    def __init__(self, writer: _Writer, scope: Mapping[str, Any], given: Mapping[str, ast.expr]) -> None:
        self.writer, self.scope, self.given = writer, scope, given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.given:
            new = copy.deepcopy(self.given[node.id])
            return _stored(new) if isinstance(node.ctx, ast.Store) else new
        if node.id not in self.scope:
            return node
        value = self.scope[node.id]
        if isinstance(value, bool):
            return ast.Constant(value)
        name, known = node.id, self.writer.globals
        while name in self.writer.own or known.setdefault(name, value) is not value:
            name += "_"
        return ast.Name(name, ast.Load())

    def statements(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with new names, without the branches that flags exclude."""
        return self.generic_visit(ast.Module(copy.deepcopy(nodes), [])).body  # type: ignore[attr-defined, no-any-return]

    def visit_If(self, node: Any) -> Any:
        """Return an ``if`` statement or expression with new names, or only the branch that a flag chooses."""
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.branch(node.body if test.value else node.orelse)
        return type(node)(test, self.branch(node.body), self.branch(node.orelse))

    visit_IfExp = visit_If  # noqa: N815

    def branch(self, found: Any) -> Any:
        """Return a branch with new names; a branch is a list of statements or one expression."""
        return self.statements(found) if isinstance(found, list) else self.visit(found)

    def visit_BoolOp(self, node: Any) -> ast.expr:
        """Return an expression with ``not``, ``and`` or ``or``, or the value of the expression if all operands are
        flags or None."""
        self.generic_visit(node)
        operands = node.values if isinstance(node, ast.BoolOp) else [node.operand]
        if not all(isinstance(x, ast.Constant) and isinstance(x.value, bool | None) for x in operands):
            return node  # type: ignore[no-any-return]
        return ast.Constant(eval(compile(ast.fix_missing_locations(ast.Expression(node)), "flags", "eval")))

    visit_UnaryOp = visit_BoolOp  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Return a comparison with new names, or the value of ``x is None`` or ``x is not None``.

        A name counts as not None, because no computed value is None.
        """
        self.generic_visit(node)
        left, op = node.left, node.ops[0]
        if isinstance(left, ast.Name | ast.Constant) and isinstance(op, ast.Is | ast.IsNot):
            absent = isinstance(left, ast.Constant) and left.value is None
            return ast.Constant(absent == isinstance(op, ast.Is))
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Remove the None items from the tuple of a return statement. Such items stand for absent states of a rule."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Tuple):
            node.value.elts = [x for x in node.value.elts if not (isinstance(x, ast.Constant) and x.value is None)]
        return node


def _stored(name: ast.expr) -> ast.expr:
    """Return the name as an assignment's target."""
    assert isinstance(name, ast.Name)
    return ast.Name(name.id, ast.Store())


def _ends_once(definition: Definition) -> bool:
    """Return True if the function has no return statement, or only one, as the last statement."""
    returns = [node for statement in definition.body for node in ast.walk(statement) if isinstance(node, ast.Return)]
    return not returns or returns == [definition.body[-1]]


def _definition(function: FunctionType) -> Definition | None:
    """Return the parts of a function's source, or None if the source is missing or differs from the code.

    Also return None if the function has positional-only, keyword-only or variadic parameters, contains a node of
    `_SCOPES`, or shares its first line with another function.
    """
    code = function.__code__
    if code.co_kwonlyargcount or code.co_posonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return None
    found, compiled = _functions(code.co_filename)
    definitions = found.get(code.co_firstlineno, [])
    if len(definitions) == 1 and code_bytes(code) in compiled.get(code.co_firstlineno, ()):
        return definitions[0]
    return None


@cache
def _functions(path: str) -> tuple[dict[int, list[Definition | None]], dict[int, list[bytes]]]:
    """Return two dicts, whose keys are the numbers of the lines at which a file's functions start. The values of the
    first dict are lists of the functions' parts, and those of the second are lists of the bytes of their code.

    The parts are None for functions that this module does not inline.
    """
    found: dict[int, list[Definition | None]] = {}
    compiled: dict[int, list[bytes]] = {}
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
        inner = [compile(tree, path, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found, compiled
    for code in inner:
        compiled.setdefault(code.co_firstlineno, []).append(code_bytes(code))
        inner += [c for c in code.co_consts if isinstance(c, CodeType)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            line = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            text = ast.get_docstring(node, clean=False) is not None
            found.setdefault(line, []).append(_described_as(node.name, node.args, node.body[text:]))
        elif isinstance(node, ast.Lambda):
            body: list[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
            found.setdefault(node.lineno, []).append(_described_as("made", node.args, body))
    return found, compiled


def _described_as(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> Definition | None:
    nodes = [node for statement in body for node in ast.walk(statement)]
    if not body or any(isinstance(node, _SCOPES) for node in nodes):
        return None
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return Definition(name, tuple(x.arg for x in arguments.args), body, frozenset(stored))


def enclosed_by(function: FunctionType) -> dict[str, Any]:
    """Return the variables of outer functions that a function reads."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def code_bytes(code: CodeType) -> bytes:
    """Return bytes that identify a function's code and do not depend on its file or line."""
    constants = [code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts]
    return b"|".join(
        [code.co_code, *constants, *(n.encode() for n in (*code.co_names, *code.co_varnames, *code.co_freevars))]
    )
