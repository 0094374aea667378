"""Removes statements from a function that do not change what it returns. Works on the syntax tree. (pure)

Conservative about names (one that is read anywhere in the module is alive) and about values (anything that may have an
effect stays). One exception: reading a value counts as harmless, although it may use up an iterator.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence
from typing import TypeGuard

_READING_NAMES = """
    abs all any ascii bin bool bytes chr complex dict divmod enumerate float format frozenset hash hex int isinstance
    issubclass len list max min oct ord pow range repr reversed round set slice sorted str sum tuple type zip
"""
_READING_CALLS = frozenset(dir(builtins)) & frozenset(_READING_NAMES.split())
_READING_METHODS = frozenset(name for kind in (str, frozenset, tuple) for name in dir(kind) if name[0] != "_") | {
    "get",
    "items",
    "keys",
    "values",
}
_READING = (
    ast.Constant,
    ast.Name,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Subscript,
    ast.Slice,
    ast.Attribute,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Starred,
    ast.Call,
    ast.keyword,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.comprehension,
    ast.Lambda,
    ast.arguments,
    ast.arg,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
_FRESH = (ast.Constant, ast.BinOp, ast.Compare, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.JoinedStr, ast.ListComp)
"""Values that nothing else refers to, so that `+=` changes only the name; and calls that return such values."""
_FRESH_CALLS = _READING_CALLS - {"max", "min"}
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Pass)
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)

Function = ast.FunctionDef | ast.AsyncFunctionDef


MAX_PASSES = 8
"""Passes over a function: one pass may leave an empty branch whose condition alone kept something else alive."""


def remove_dead_code(tree: ast.Module) -> bool:
    """Change the tree in place; returns whether there was anything to remove."""
    for number in range(MAX_PASSES):
        # Recomputed on each pass: names that an earlier function no longer reads are dead now.
        names = _Names(tree)
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        if not any([_prune(function, names) for function in functions]):
            return number > 0
    return True


def _prune(function: Function, names: _Names) -> bool:
    pruned = False
    for body in _bodies(function):
        kept = list(_alive(body, names)) or [ast.Pass()]
        if not _is_empty(body) and kept != body:
            body[:] = kept
            pruned = True
    return pruned


class _Names:
    """Which names are read and bound where in the module."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.defined = {node.name for node in nodes if isinstance(node, Function | ast.ClassDef)}
        self.defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        fresh: set[ast.AST] = {node.target for node in nodes if isinstance(node, ast.AugAssign)}
        fresh |= {node.targets[0] for node in nodes if isinstance(node, ast.Assign) and _is_fresh(node.value)}
        self.not_fresh = {node.id for node in nodes if _is_stored(node) and node not in fresh}
        """Names whose value other names may share."""
        functions = [node for node in nodes if isinstance(node, Function)]
        self.read = self._read(nodes, {one for function in functions for body in _bodies(function) for one in body})

    def _read(self, nodes: Sequence[ast.AST], own: Collection[ast.stmt]) -> set[str]:
        """Live names. What a removable assignment reads is live only if what it binds is.

        own: statements of functions themselves. Names that a class binds are reached as attributes.
        """
        needs: dict[str, set[str]] = {}
        removable: set[ast.AST] = set()
        for node in nodes:
            name = _target(node)
            if name is None or node not in own or not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            if isinstance(node, ast.AugAssign):
                is_removable = name not in self.not_fresh | self.defined and self.only_reads(node.value)
            else:
                is_removable = self.only_reads(node.value)
            if is_removable:
                inside = set(ast.walk(node))
                removable |= inside
                needs.setdefault(name, set()).update(one.id for one in inside if _is_loaded(one))
        waiting = [node.id for node in nodes if node not in removable and _is_loaded(node)]
        waiting += [name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names]
        # An `x += ...` that has to stay reads x, so earlier assignments to x stay too.
        waiting += [str(_target(node)) for node in nodes if isinstance(node, ast.AugAssign) and node not in removable]
        read: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in read:
                read.add(name)
                waiting.extend(needs.get(name, ()))
        return read

    def only_reads(self, node: ast.AST | None) -> bool:
        """Whether evaluating this has no effect."""
        return node is None or all(self._reads(one) for one in ast.walk(node))

    def _reads(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in _READING_CALLS and name not in self.defined
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in _READING_METHODS and name not in self.defined
            case ast.Call():
                return False
        return isinstance(node, _READING)


def _alive(body: Sequence[ast.stmt], names: _Names) -> Iterator[ast.stmt]:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant):
            yield from statement.body if statement.test.value else statement.orelse
            continue
        if not _is_dead(statement, body[place + 1 :], names):
            yield statement
        if isinstance(statement, _LEAVES):
            return


def _is_dead(statement: ast.stmt, later: Sequence[ast.stmt], names: _Names) -> bool:
    match statement:
        case ast.Pass():
            return True
        case ast.Expr(value=value):
            return names.only_reads(value)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)) if name == other:
            return True
        case ast.Assign() | ast.AnnAssign(value=ast.expr()) if name_ := _target(statement):
            unread = name_ not in names.read or _is_overwritten(name_, later)
            return unread and names.only_reads(statement.value)
        case ast.AugAssign(value=value) if name_ := _target(statement):
            return name_ not in names.read and names.only_reads(value)
        case ast.If(test=test, body=body, orelse=other) if _is_empty(body) and _is_empty(other):
            return names.only_reads(test)
        case ast.For(target=ast.Name(id=name), iter=values, body=body, orelse=other) if _is_empty(body + other):
            return name not in names.read and names.only_reads(values)
        case ast.While(test=ast.Constant(value=value), orelse=[]):
            return not value
    return False


def _is_fresh(value: ast.expr) -> bool:
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _FRESH_CALLS
    return is_call or isinstance(value, _FRESH)


def _is_loaded(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_empty(body: Sequence[ast.stmt]) -> bool:
    return all(isinstance(statement, ast.Pass) for statement in body)


def _target(node: ast.AST) -> str | None:
    """The single name that the statement binds."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return name
    return None


def _is_overwritten(name: str, later: Sequence[ast.stmt]) -> bool:
    """Whether the name is rebound, or goes out of use, before anything reads it. Looks at simple statements only."""
    for statement in later:
        if _reads_name(statement, name) or not isinstance(statement, _SIMPLE):
            return False
        if _target(statement) == name and isinstance(statement, ast.Assign):
            return True
    return False


def _reads_name(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.AugAssign) and _target(statement) == name:
        return True
    return any(_is_loaded(node) and node.id == name for node in ast.walk(statement))


def _bodies(function: Function) -> Iterator[list[ast.stmt]]:
    """All statement lists of the function itself, inner ones first, without those of nested functions and classes."""
    for statement in function.body:
        yield from _inner_bodies(statement)
    yield function.body


def _inner_bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, Function | ast.ClassDef):
        return
    for _, value in ast.iter_fields(statement):
        for one in value if isinstance(value, list) else ():
            if isinstance(one, ast.stmt):
                yield from _inner_bodies(one)
            elif isinstance(one, ast.ExceptHandler | ast.match_case):
                for inner in one.body:
                    yield from _inner_bodies(inner)
                yield one.body
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
