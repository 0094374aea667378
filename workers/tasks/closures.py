"""Keys of functions: equal for functions that compute the same in the same way, whatever surrounds them. (pure)

A key covers the function's own syntax tree and everything that it reaches in its module. It ignores what is easy to
disguise: names of functions, variables and aliases; comments, docstrings, annotations, decorators, imports and `pass`;
constants, and asserts of constants, that stand alone; statements without effect (`dead_code`); and anything in the
module that the function does not reach. Built-ins, attributes and keyword names keep their names.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workers.sandbox.normalise import syntax_tree
from workers.tasks.dead_code import remove_dead_code

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Import = ast.Import | ast.ImportFrom
_BUILT_IN = frozenset(dir(builtins))


class Key(NamedTuple):
    """digest: equal for equal functions. size: number of tokens in it; keys of unequal size are unequal."""

    digest: bytes
    size: int


class Definitions:
    """The definitions of a program."""

    def __init__(self, program: str, *, keeps_dead_code: bool = False) -> None:
        """Raises SyntaxError or ValueError if the program has no syntax tree, or one that is nested too deeply."""
        tree = syntax_tree(program)
        self.had_dead_code = not keeps_dead_code and remove_dead_code(tree)
        """Whether dead code was removed: without any, the keys are those of `keeps_dead_code`."""
        self._functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        self._top = [node for node in tree.body if isinstance(node, Function)]
        imports = [name for node in ast.walk(tree) if isinstance(node, _Import) for name in node.names]
        # Built-ins and imports are not names of the module, even if something binds them: that may be a dead branch.
        fixed = _BUILT_IN | {(one.asname or one.name).split(".")[0] for one in imports}
        self._binders: dict[str, list[ast.stmt]] = {}
        for statement in _statements(tree.body):
            for name in _bound([statement]) - fixed:
                self._binders.setdefault(name, []).append(statement)
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                self._binders.update((name, []) for name in {*node.names} - fixed if name not in self._binders)
        self._aliases = dict(self._found_aliases(imports))
        self._forms: dict[ast.stmt, list[str | _Outer]] = {}

    def entry_keys(self, entry: str = "f") -> Iterator[Key]:
        """The key of the top-level function of this name, or of all top-level functions if there is none."""
        for function in [one for one in self._top if one.name == entry] or self._top:
            if key := self._key(function):
                yield key

    def function_keys(self, max_size: int) -> Iterator[Key]:
        """Keys of all functions up to `max_size`, including inner ones and methods."""
        for function in self._functions:
            if key := self._key(function, max_size):
                yield key

    def _found_aliases(self, imports: Sequence[ast.alias]) -> Iterator[tuple[str, str]]:
        """Aliases: `import a as b`, and a top-level `b = a` if nothing else binds b."""
        for one in imports:
            if one.asname and one.asname not in _BUILT_IN:
                yield one.asname, one.name
        for name, statements in list(self._binders.items()):
            match statements:
                case [ast.Assign(targets=[ast.Name()], value=ast.Name(id=other))]:
                    del self._binders[name]
                    yield name, other

    def _true_name(self, name: str) -> str:
        seen, found = {name}, name
        while (other := self._aliases.get(found, found)) not in seen:
            seen.add(other)
            found = other
        if found != name:
            self._aliases[name] = found  # shortens the next lookup to one step
        return found

    def _form(self, statement: ast.stmt) -> list[str | _Outer]:
        if statement not in self._forms:
            writer = _Writer()
            writer.write(statement)
            self._forms[statement] = writer.tokens
        return self._forms[statement]

    def _key(self, root: Function, max_size: float = float("inf")) -> Key | None:
        """The key of the function and of all statements that bind what it reaches, in the order of first use."""
        numbers = {root.name: "@0"}
        taken: set[ast.stmt] = {root}
        waiting: deque[ast.stmt] = deque([root])
        found: list[str] = []
        while waiting:
            form = self._form(waiting.popleft())
            if len(found) + len(form) > max_size:
                return None
            for token in form:
                if isinstance(token, str):
                    found.append(token)
                    continue
                name = token.name if token.name == root.name else self._true_name(token.name)
                if name in self._binders and name not in numbers:
                    numbers[name] = f"@{len(numbers)}"
                    new = [one for one in self._binders[name] if one not in taken]
                    taken.update(new)
                    waiting.extend(new)
                found.append(numbers.get(name, name))
        return Key(hashlib.sha256("\0".join(found).encode("utf-8", "surrogatepass")).digest(), len(found))


class _Outer(NamedTuple):
    """A name that the statement does not bind: one of the module, or a built-in."""

    name: str


class _Scope(NamedTuple):
    bound: set[str]
    is_class: bool
    numbers: dict[str, str]


class _Writer:
    """Writes a statement as tokens. Names that it binds are numbered in the order of first use."""

    def __init__(self) -> None:
        self.tokens: list[str | _Outer] = []
        self._scopes: list[_Scope] = []
        self._count = 0

    def write(self, node: ast.AST) -> None:
        match node:
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                node = ast.Assign(targets=[target], value=value, type_comment=None)
        self.tokens.append(type(node).__name__)
        match node:
            case ast.Name(id=name):
                self._name(name)
            case ast.Constant(value=constant):
                self.tokens.append(repr(constant))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case ast.ClassDef():
                self._name(node.name)
                self._list([*node.bases, *node.keywords])
                self._scopes.append(_Scope(_bound(node.body), True, {}))
                self._list(node.body)
                self._scopes.pop()
            case _:
                self._fields(node)

    def _fields(self, node: ast.AST) -> None:
        binds = isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping)
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                self._list(value)
            elif isinstance(value, ast.AST):
                self.write(value)
            elif isinstance(value, str) and binds:
                self._name(value)
            else:
                self.tokens.append(str(value))

    def _list(self, items: Sequence[ast.AST | str | None]) -> None:
        self.tokens.append("[")
        for item in items:
            if not isinstance(item, ast.AST):
                self.tokens.append(str(item))
            elif not _is_idle(item):
                self.write(item)
        self.tokens.append("]")

    def _function(self, node: Function | ast.Lambda) -> None:
        if not isinstance(node, ast.Lambda):
            self._name(node.name)
        given = node.args
        self._list([*given.defaults, *given.kw_defaults])  # evaluated outside
        kinds = (given.posonlyargs, given.args, [given.vararg], given.kwonlyargs, [given.kwarg])
        names = [[one.arg for one in kind if one] for kind in kinds]
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._scopes.append(_Scope(_bound(body) | {name for kind in names for name in kind}, False, {}))
        for kind in names:
            self.tokens.append(str(len(kind)))
            for name in kind:
                self._name(name)
        self._list(body)
        self._scopes.pop()

    def _comprehension(self, node: _Comprehension) -> None:
        first, *others = node.generators
        self.write(first.iter)  # evaluated outside
        self._scopes.append(_Scope(_bound([one.target for one in node.generators]), False, {}))
        self._list([first.target, *first.ifs, *others])
        self.tokens.append(str(first.is_async))
        self._list([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scopes.pop()

    def _name(self, name: str) -> None:
        for depth, scope in enumerate(reversed(self._scopes)):
            if name not in scope.bound or (scope.is_class and depth):
                continue
            if scope.is_class:  # others reach the name as an attribute
                self.tokens.append(name)
                return
            if name not in scope.numbers:
                scope.numbers[name] = f"#{self._count}"
                self._count += 1
            self.tokens.append(scope.numbers[name])
            return
        self.tokens.append(_Outer(name))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of the module. A branch counts by its statements, because it is easy to wrap a definition in one."""
    for statement in body:
        match statement:
            case ast.If() | ast.Try():
                yield from _statements(one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt))
            case _:
                yield statement


def _is_idle(node: ast.AST) -> bool:
    """Whether the statement does nothing. `global` and imports are idle here: scopes and aliases are found
    elsewhere."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return True
        case ast.Assert(test=ast.Constant(value=value)):
            return bool(value)
    return isinstance(node, ast.Pass | ast.Global | ast.Nonlocal | _Import)


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that the nodes bind in their own scope, except imports."""
    bound: set[str] = set()
    outside: set[str] = set()
    waiting = [(node, False) for node in nodes]
    while waiting:
        node, is_inner = waiting.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
                continue
            case ast.Lambda():
                continue
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                outside.update(names)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if not is_inner:
                bound.add(name)
            case ast.NamedExpr(target=ast.Name(id=name)):  # binds in the scope around a comprehension
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.MatchMapping(rest=str(name)):
                bound.add(name)
        is_inner = is_inner or isinstance(node, _Comprehension)
        waiting.extend((child, is_inner) for child in ast.iter_child_nodes(node))
    return bound - outside
