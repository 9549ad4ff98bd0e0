"""Functions that a kernel calls, written into its own source before numba sees it.

numba can write one function into another too (``inline="always"``), in its own representation, of which it copies a
whole scope for each block: that took a third of a kernel's compilation. Here it is a rewriting of the syntax tree:
a call becomes assignments of its arguments, the function's statements under names of their own, and its value. What
cannot be rewritten (no source, two returns, scopes of its own, a call that may not be evaluated) is left to numba,
whose result is the same. A function whose value is used must change nothing that the rest of the statement reads: it is
evaluated before that.
May import: `islices.core.locks`.
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

#: What has names of its own, or gives some a meaning that a renaming changes: functions with these stay as they are.
_SCOPES = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension, ast.NamedExpr, ast.Global,
    ast.Nonlocal, ast.Match, ast.Try, ast.With, ast.Import, ast.ImportFrom, ast.Delete,
)  # fmt: skip

#: Python before 3.11.9 and 3.12.3 counts the depth of syntax trees for all threads together: where two make one,
#: SystemError may be raised.
_parsing = Lock()


class Definition(NamedTuple):
    """What a function's source says, a lambda's as well."""

    name: str
    arguments: tuple[str, ...]
    body: list[ast.stmt]
    stored: frozenset[str]  # the names that it assigns to


def expand(
    function: FunctionType,
    inlined: Callable[[Any], FunctionType | None],
    arguments: tuple[str, ...] | None = None,
    constants: Mapping[str, bool | None] | None = None,
) -> FunctionType:
    """The function, with the calls of what `inlined` knows as a function to be written into it written out.

    Flags, the names of bools, are looked up now, and what they exclude is left out. arguments: the parameters in
    another order; those that are left out are constants.
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
        for node in ast.walk(header):  # lines of other files would mean nothing in this one
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
    """Whether a function can be rewritten."""
    with _parsing:
        return isinstance(function, FunctionType) and _definition(function) is not None


class _Writer:
    """What is being written into a function whose local names are `own`, and the global names that it uses so far."""

    def __init__(self, inlined: Callable[[Any], FunctionType | None], own: Collection[str]) -> None:
        self.inlined, self.own = inlined, own
        self.globals: dict[str, Any] = {}
        self.count = 0

    def body(self, definition: Definition, function: FunctionType, given: Mapping[str, ast.expr]) -> list[ast.stmt]:
        """The statements of a function; `given` are its local names' new ones."""
        named = _Names(self, {**vars(builtins), **function.__globals__, **enclosed_by(function)}, given)
        return self.block(named.statements(definition.body))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [out for statement in statements for out in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """What a statement becomes, each call in it written out before it."""
        before: list[ast.stmt] = []
        if isinstance(node, ast.If):
            node.test = self.expression(node.test, before)
        elif isinstance(node, ast.For):
            node.iter = self.expression(node.iter, before)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Return) and node.value is not None:
            node.value = self.expression(node.value, before)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Name):
                return before  # of a call that gives nothing
        if isinstance(node, ast.If | ast.For | ast.While):
            node.body, node.orelse = self.block(node.body) or [ast.Pass()], self.block(node.orelse)
        return [*before, node]

    def expression(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """The expression without the calls in it that are written out, whose statements are added to `before`."""
        if isinstance(node, ast.IfExp | ast.BoolOp) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            return node  # what is not always evaluated stays where it is
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
        """The value of a call, whose statements are added to `before`."""
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
        """A local name that there is not yet."""
        self.count += 1
        while f"{name}__{self.count}" in self.own:
            self.count += 1
        return ast.Name(f"{name}__{self.count}", ast.Load())


class _Names(ast.NodeTransformer):
    """A function's names as the kernel has them: its local ones renamed, global ones kept apart, flags looked up."""

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
        """Statements as the kernel has them, without those that flags exclude."""
        found: list[ast.stmt] = []
        for node in nodes:
            new = self.visit(copy.deepcopy(node))
            found += new if isinstance(new, list) else [new]
        return found

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.statements(node.body if test.value else node.orelse)
        return ast.If(test, self.statements(node.body), self.statements(node.orelse))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """A comparison; ``x is None`` of a parameter is known, since None is none of what is computed."""
        left, others = self.visit(node.left), [self.visit(x) for x in node.comparators]
        if isinstance(left, ast.Name | ast.Constant) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            absent = isinstance(left, ast.Constant) and left.value is None
            return ast.Constant(absent == isinstance(node.ops[0], ast.Is))
        return ast.Compare(left, node.ops, others)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(operand, ast.Constant):
            return ast.Constant(not operand.value)
        return ast.UnaryOp(node.op, operand)

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """A return; of a rule's state, what is absent is left out."""
        value = node.value and self.visit(node.value)
        if isinstance(value, ast.Tuple):
            value.elts = [x for x in value.elts if not (isinstance(x, ast.Constant) and x.value is None)]
        return ast.Return(value)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            chosen: ast.expr = self.visit(node.body if test.value else node.orelse)
            return chosen
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        values = [self.visit(value) for value in node.values]
        if not all(isinstance(value, ast.Constant) and isinstance(value.value, bool) for value in values):
            return ast.BoolOp(node.op, values)
        return ast.Constant((all if isinstance(node.op, ast.And) else any)(value.value for value in values))


def _stored(name: ast.expr) -> ast.expr:
    """The name as what is assigned to."""
    assert isinstance(name, ast.Name)
    return ast.Name(name.id, ast.Store())


def _ends_once(definition: Definition) -> bool:
    """Whether there is no return but, perhaps, the last statement."""
    returns = [node for statement in definition.body for node in ast.walk(statement) if isinstance(node, ast.Return)]
    return not returns or returns == [definition.body[-1]]


def _definition(function: FunctionType) -> Definition | None:
    """What a function's source says, if that is there and still the function's, which has arguments by place alone and
    nothing from around it."""
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
    """The functions of a file by the lines where they begin: what they say (None: they stay as they are), and what
    their code must be."""
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
            found.setdefault(line, []).append(_said(node.name, node.args, node.body[text:]))
        elif isinstance(node, ast.Lambda):
            body: list[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
            found.setdefault(node.lineno, []).append(_said("made", node.args, body))
    return found, compiled


def _said(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> Definition | None:
    nodes = [node for statement in body for node in ast.walk(statement)]
    if not body or any(isinstance(node, _SCOPES) for node in nodes):
        return None
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return Definition(name, tuple(x.arg for x in arguments.args), body, frozenset(stored))


def enclosed_by(function: FunctionType) -> dict[str, Any]:
    """Return the variables of outer functions that a function names."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def code_bytes(code: CodeType) -> bytes:
    """What tells one function's code from another's, wherever it stands."""
    constants = [code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts]
    return b"|".join(
        [code.co_code, *constants, *(n.encode() for n in (*code.co_names, *code.co_varnames, *code.co_freevars))]
    )
