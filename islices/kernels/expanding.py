"""Functions that a kernel calls, written into its own source before numba sees it.

numba can write one function into another too (``inline="always"``), in its own representation, of which it copies a
whole scope for each block: that took a third of a kernel's compilation. Here it is a rewriting of the syntax tree:
a call becomes assignments of its arguments, the function's statements under names of their own, and its value. What
cannot be rewritten (no source, two values returned, a call that may not be evaluated) is left to numba, whose result
is the same. A function whose value is used must change nothing: it is evaluated before the rest of its statement.
May import: the standard library.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

__all__ = ["code_bytes", "expand"]

Definition = ast.FunctionDef | ast.Lambda


def expand(function: FunctionType, inlined: Callable[[Any], FunctionType | None]) -> FunctionType:
    """The function, with the calls of what `inlined` knows as a function to be written into it written out.

    Flags, the names of bools, are looked up now, and what they exclude is left out.
    """
    definition = _definition(function)
    if not isinstance(definition, ast.FunctionDef):
        return function
    own = {*_stored(definition), *(x.arg for x in definition.args.args)}
    writer = _Writer(inlined, own)
    body = writer.body(definition, function, {name: ast.Name(name) for name in own})
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(x.arg) for x in definition.args.args], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    header = ast.FunctionDef(name=definition.name, args=arguments, body=body or [ast.Pass()], decorator_list=[])
    ast.copy_location(header, definition)
    for node in ast.walk(header):  # lines of other files would mean nothing in this one
        if hasattr(node, "lineno"):
            ast.copy_location(node, definition)
    module = ast.Module([ast.fix_missing_locations(header)], [])
    exec(compile(module, function.__code__.co_filename, "exec", dont_inherit=True), writer.globals)
    written: FunctionType = writer.globals.pop(definition.name)
    written.__module__ = function.__module__
    written.__dict__.update(function.__dict__)
    return written


class _Writer:
    """What is being written into a function whose local names are `own`, and the global names that it uses so far."""

    def __init__(self, inlined: Callable[[Any], FunctionType | None], own: Set[str]) -> None:
        self.inlined, self.own = inlined, own
        self.globals: dict[str, Any] = {}
        self.count = 0

    def body(self, definition: Definition, function: FunctionType, given: Mapping[str, ast.expr]) -> list[ast.stmt]:
        """The statements of a function; `given` are its local names' new ones."""
        named = _Names(self, function.__globals__, given)
        statements = definition.body if isinstance(definition, ast.FunctionDef) else [ast.Return(definition.body)]
        out: list[ast.stmt] = []
        for statement in statements:
            if not _is_text(statement):
                out += self.statement(named.visit(copy.deepcopy(statement)))
        return out

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """What a statement becomes, each call in it written out before it."""
        before: list[ast.stmt] = []
        if isinstance(node, ast.If) and isinstance(node.test, ast.Constant):
            return self.block(node.body if node.test.value else node.orelse)
        if isinstance(node, ast.If | ast.For | ast.While):
            if isinstance(node, ast.If):
                node.test = self.expression(node.test, before)
            elif isinstance(node, ast.For):
                node.iter = self.expression(node.iter, before)
            node.body, node.orelse = self.block(node.body) or [ast.Pass()], self.block(node.orelse)
        elif isinstance(node, ast.Expr):
            value = self.expression(node.value, before)
            if isinstance(value, ast.Constant | ast.Name):  # of a call that gives nothing
                return before
            node.value = value
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Return) and node.value is not None:
            node.value = self.expression(node.value, before)
        return [*before, node]

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [out for statement in statements for out in self.statement(statement)]

    def expression(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """The expression without the calls in it that are written out, whose statements are added to `before`."""
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda | ast.GeneratorExp | ast.ListComp):
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
        if definition is None or not _ends_once(definition):
            return node
        self.count += 1
        changed = set(_stored(definition))
        given: dict[str, ast.expr] = {name: ast.Name(f"{name}__{self.count}", ast.Load()) for name in changed}
        for parameter, argument in zip(definition.args.args, node.args, strict=True):
            name = parameter.arg
            if name not in changed and isinstance(argument, ast.Name | ast.Constant):
                given[name] = argument
            else:
                given[name] = ast.Name(f"{name}__{self.count}", ast.Load())
                before.append(ast.Assign([ast.Name(f"{name}__{self.count}", ast.Store())], argument))
        statements = self.body(definition, function, given)
        if statements and isinstance(statements[-1], ast.Return):
            value = statements.pop()
            before += statements
            return value.value or ast.Constant(None)  # type: ignore[attr-defined]
        before += statements
        return ast.Constant(None)


class _Names(ast.NodeTransformer):
    """A function's names as the kernel has them: its local ones renamed, global ones kept apart, flags looked up."""

    def __init__(self, writer: _Writer, scope: Mapping[str, Any], given: Mapping[str, ast.expr]) -> None:
        self.writer, self.scope, self.given = writer, scope, given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.given:
            new = copy.deepcopy(self.given[node.id])
            if isinstance(new, ast.Name):
                new.ctx = node.ctx
            return new
        if node.id not in self.scope or not isinstance(node.ctx, ast.Load):
            return node
        value = self.scope[node.id]
        if isinstance(value, bool):
            return ast.Constant(value)
        name, known = node.id, self.writer.globals
        if name in self.writer.own or known.setdefault(name, value) is not value:
            name = next((n for n, v in known.items() if v is value), f"{name}__of_{len(known)}")
            known[name] = value
        return ast.Name(name, ast.Load())

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            chosen: ast.expr = self.visit(node.body if test.value else node.orelse)
            return chosen
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        values = [self.visit(value) for value in node.values]
        if all(isinstance(value, ast.Constant) for value in values):
            every = isinstance(node.op, ast.And)
            return ast.Constant((all if every else any)(value.value for value in values))
        return ast.BoolOp(node.op, values)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _stored(definition: Definition) -> Iterator[str]:
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


def _ends_once(definition: Definition) -> bool:
    """Whether there is no return but, perhaps, the last statement."""
    if isinstance(definition, ast.Lambda):
        return True
    returns = [node for node in ast.walk(definition) if isinstance(node, ast.Return)]
    return not returns or returns == [definition.body[-1]]


def _definition(function: FunctionType) -> Definition | None:
    """A function's definition in its file, if that is there and still the function's, which has arguments by place
    alone and nothing from around it."""
    code = function.__code__
    if (
        code.co_freevars
        or code.co_kwonlyargcount
        or function.__defaults__
        or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    ):
        return None
    found, compiled = _functions(code.co_filename)
    definitions = found.get(code.co_firstlineno, [])
    if len(definitions) == 1 and code_bytes(code) in compiled.get(code.co_firstlineno, ()):
        return definitions[0]
    return None


@cache
def _functions(path: str) -> tuple[dict[int, list[Definition]], dict[int, list[bytes]]]:
    """The functions of a file by the lines where they begin: their definitions, and what their code must be."""
    found: dict[int, list[Definition]] = {}
    compiled: dict[int, list[bytes]] = {}
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return found, compiled
    inner = [compile(tree, path, "exec", dont_inherit=True)]
    for code in inner:
        compiled.setdefault(code.co_firstlineno, []).append(code_bytes(code))
        inner += [c for c in code.co_consts if isinstance(c, CodeType)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            found.setdefault(min(x.lineno for x in (*decorators, node)), []).append(node)
    return found, compiled


def code_bytes(code: CodeType) -> bytes:
    """What tells one function's code from another's, wherever it stands."""
    constants = [code_bytes(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts]
    return b"|".join([code.co_code, *constants, *(n.encode() for n in (*code.co_names, *code.co_varnames))])
