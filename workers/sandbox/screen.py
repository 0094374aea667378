"""Static screening: checks a program's syntax tree against the task's rules without running it.

Pure. This is hygiene, not protection: it rejects forbidden constructs (clocks, randomness, files) early and with a
reason. The sandboxed process enforces what a program can actually do.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

MAX_SOURCE = 65_536
"""Maximum source size, in bytes."""
MAX_DEPTH = 120
"""Maximum depth of the syntax tree, low enough to walk, dump or unparse it recursively."""

TOLD = (
    "logging",
    "random",
    "multiprocessing",
    "pebble",
    "subprocess",
    "threading",
    "datetime",
    "time",
    "hashlib",
    "hmac",
    "bcrypt",
    "os",
    "sys",
    "calendar",
)
"""Banned modules that the prompt names to the model."""
_UNTOLD = """
    shutil socket ctypes importlib pathlib io tempfile signal asyncio secrets uuid gc inspect urllib http requests
    pickle builtins
"""
CALLS = ("open", "eval", "exec", "compile", "input", "__import__", "breakpoint", "globals", "locals", "vars", "id")
BANNED_ROOTS = frozenset(TOLD) | frozenset(_UNTOLD.split())
BANNED_CALLS = frozenset(CALLS)


def screen(program: str, entry: str = "f", *, needs_value: bool = True) -> str | None:
    """Why the program is rejected, or None. `entry`: the one top-level function that it must define.

    needs_value: the entry function must have a parameter and a `return` with a value.
    """
    size = len(program.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE:
        return f"source of {size} bytes, more than {MAX_SOURCE}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
    except SyntaxError as error:
        return f"syntax error: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"cannot be parsed: {error or type(error).__name__}"
    if is_too_deep(tree):
        return f"nested deeper than {MAX_DEPTH} levels"
    return _entry_reason(tree, entry, needs_value) or next(_reasons(tree), None)


def is_too_deep(tree: ast.AST) -> bool:
    """Whether the tree has more than MAX_DEPTH levels; does not recurse."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def _entry_reason(tree: ast.Module, entry: str, needs_value: bool) -> str | None:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry]
    if len(found) != 1:
        return f"needs one top-level function {entry}, has {len(found)}"
    if not needs_value:
        return None
    arguments = found[0].args
    if not (arguments.posonlyargs or arguments.args or arguments.vararg or arguments.kwonlyargs or arguments.kwarg):
        return f"{entry} has no parameter"
    if not any(isinstance(node, ast.Return) and node.value is not None for node in _own_nodes(found[0])):
        return f"{entry} returns no value"
    return None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes of the function itself, without the bodies of nested functions and classes."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _reasons(tree: ast.Module) -> Iterator[str]:
    """Yield every broken rule in source order. Matches whole names, never substrings."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_class = waiting.pop()
        in_class = in_class or isinstance(node, ast.ClassDef)
        match node:
            case ast.Import(names=names):
                yield from (f"banned import: {alias.name}" for alias in names if _banned(alias.name))
            case ast.ImportFrom(module=module, level=level):
                if level:
                    yield "relative import"
                elif _banned(module or ""):
                    yield f"banned import: {module}"
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield f"banned call: {name}"
            case ast.Attribute(attr=name) if name.startswith("__") and not in_class:
                yield f"attribute with two leading underscores outside a class: {name}"
        waiting.extend((child, in_class) for child in reversed(list(ast.iter_child_nodes(node))))


def _banned(module: str) -> bool:
    return module.split(".")[0] in BANNED_ROOTS
