"""Edits programs as text: renames the entry function, strips globals, composes several into one. (pure)

Everything works on the syntax tree; nothing runs. A text that does not parse is returned unchanged, and the checks that
follow report why.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache

from workers.sandbox.screen import is_too_deep

Function = ast.FunctionDef | ast.AsyncFunctionDef

PART = re.compile(r"g_\d+")
"""Names of earlier programs in the prompt of a proposer that must build on them."""
_NUMBERED = re.compile(r"g_(0|[1-9][0-9]{0,3})")
"""The subset whose number survives reading and writing."""


def parse(program: str) -> ast.Module | None:
    """The syntax tree; None if the text is not a program, or is nested too deeply for recursion."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if is_too_deep(tree) else tree


def with_entry(program: str, entry: str = "f") -> str:
    """The program with its only top-level function renamed to `entry`, unless a function of that name exists.

    Keeps comments and spacing. Changes nothing if the old or new name has another meaning too: a parameter, an import,
    an inner function. Such a program has no entry, and is rejected for that.
    """
    tree = parse(program)
    if tree is None:
        return program
    functions = [node for node in tree.body if isinstance(node, Function)]
    if len(functions) != 1 or functions[0].name == entry:
        return program
    return renamed(program, tree, functions[0], entry) or program


def renamed(program: str, tree: ast.Module, function: Function, name: str) -> str | None:
    """The text with this top-level function and all references to it renamed; None if that is unsafe.

    Keeps comments. Unsafe includes unreliable positions: inside f-strings they are wrong before Python 3.12.
    """
    old = function.name
    others = [bound for bound in _bound_names(tree) if bound in (old, name)]
    if others != [old] or any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree)):
        return None
    lines = program.encode().splitlines(keepends=True)
    for line, column in sorted(_places(tree, function, lines), reverse=True):
        text = lines[line]
        lines[line] = text[:column] + name.encode() + text[column + len(old.encode()) :]
    wanted = _Rename(old, name).visit(ast.parse(program))
    found = b"".join(lines).decode(errors="replace")
    made = parse(found)
    return found if made is not None and ast.dump(made) == ast.dump(wanted) else ast.unparse(wanted)


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, name: str) -> None:
        self.old, self.name = old, name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self.name, node.ctx), node) if node.id == self.old else node

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for statement in node.body:
            if isinstance(statement, Function) and statement.name == self.old:
                statement.name = self.name
        return self.generic_visit(node)


def _places(tree: ast.Module, function: Function, lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """(line, byte column), from 0, of the definition and of each reference."""
    line = function.lineno - 1
    head = re.compile(rb"(?:async\s+)?def\s+").match(lines[line], function.col_offset)
    if head:
        yield line, head.end()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == function.name:
            yield node.lineno - 1, node.col_offset


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Every name bound by a definition, parameter, assignment, import or declaration, once per binding."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name).split(".")[0] for alias in names)
            case ast.Global(names=found) | ast.Nonlocal(names=found):
                yield from found
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def stripped(program: str) -> str:
    """Only imports, functions and classes, without comments and docstrings."""
    tree = parse(program)
    if tree is None:
        return program
    kept: list[ast.stmt] = [
        node for node in tree.body if isinstance(node, Function | ast.ClassDef | ast.Import | ast.ImportFrom)
    ]
    for top in kept:
        for node in ast.walk(top):
            if isinstance(node, Function | ast.ClassDef):
                node.body = _without_docstring(node.body)
    # All imports first: an import may follow the function that uses it, but then nobody repeats it there.
    kept.sort(key=lambda node: not isinstance(node, ast.Import | ast.ImportFrom))
    return ast.unparse(ast.Module(kept, []))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest or [ast.Pass()]
    return body


def imports_of(program: str) -> list[str]:
    """The top-level imports in order, without repeats; those from `__future__` first."""
    tree = parse(program)
    found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)] if tree else []
    found.sort(key=lambda node: not (isinstance(node, ast.ImportFrom) and node.module == "__future__"))
    return list(dict.fromkeys(ast.unparse(node) for node in found))


def num_functions(program: str) -> int:
    """Number of `def`s, including methods and inner functions."""
    tree = parse(program)
    return sum(isinstance(node, Function) for node in ast.walk(tree)) if tree else 0


# --- programs that build on earlier ones ---------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def can_be_part(program: str) -> bool:
    """Whether the program is only imports and one function `f`, so that its names cannot clash with another
    program's."""
    tree = parse(program)
    if tree is None:
        return False
    rest = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return len(rest) == 1 and isinstance(rest[0], ast.FunctionDef) and rest[0].name == "f" and bool(part(program, 0))


def part(program: str, number: int) -> str:
    """The program as `g_NUMBER`, without its imports; empty if it cannot be renamed.

    A part that is already named g_N, as in the original's files, gets the number by which it is called.
    """
    tree = parse(program)
    if tree is None:
        return ""
    function = _part_function(tree)
    if function is None:
        return ""
    # Unparse first, which drops comments; decorators are kept.
    alone = ast.unparse(ast.Module([function], []))
    if function.name == f"g_{number}":
        return alone
    again = ast.parse(alone)
    (only,) = again.body
    assert isinstance(only, ast.FunctionDef)
    return renamed(alone, again, only, f"g_{number}") or ""


def _part_function(tree: ast.Module) -> ast.FunctionDef | None:
    """`f`, else the first function already named g_N."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    named = next((node for node in functions if PART.fullmatch(node.name)), None)
    return next((node for node in functions if node.name == "f"), named)


def _numbers(tree: ast.Module, parts: Sequence[str]) -> list[int]:
    """Each part's number: the N of its name if the program calls it so and no other part has it; else its index."""
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    trees = [parse(text) for text in parts]
    found = [_part_function(one) if one else None for one in trees]
    names = [one.name if one else "" for one in found]
    own = [int(name[2:]) if _NUMBERED.fullmatch(name) and name in called else place for place, name in enumerate(names)]
    return own if len(set(own)) == len(own) else list(range(len(parts)))


def parts_problem(program: str, count: int) -> str:
    """Why the program does not build on g_0 ... g_{count-1}: `f` does not call one, or it is rebound. Else empty."""
    tree = parse(program)
    if tree is None:
        return "does not parse"
    names = [f"g_{number}" for number in range(count)]
    bound = set(_bound_names(tree))
    entry = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f"), None)
    called = {
        node.func.id
        for node in (ast.walk(entry) if entry else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for name in names:
        if name in bound:
            return f"{name} is redefined"
        if name not in called:
            return f"f does not call {name}"
    return ""


def composed(program: str, parts: Sequence[str]) -> str:
    """One self-contained program: all imports, the parts as g_0, g_1 ..., then `program` without its imports.

    Parts that are named g_N already keep the number by which the program calls them.
    """
    tree = parse(program)
    if tree is None:
        return program
    imports = list(dict.fromkeys(line for text in (program, *parts) for line in imports_of(text)))
    imports.sort(key=lambda line: not line.startswith("from __future__"))
    rest = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    bodies = [part(text, number) for number, text in zip(_numbers(tree, parts), parts, strict=True)]
    return "\n".join([*imports, *bodies, ast.unparse(ast.Module(rest, []))])


def is_composed(program: str) -> bool:
    """Whether the program defines a top-level function g_N."""
    tree = parse(program)
    return any(isinstance(node, Function) and PART.fullmatch(node.name) for node in (tree.body if tree else ()))
