"""Keys for deduplicating programs and examples, independent of comments, docstrings, spacing and annotations.

Pure. Programs are compared by syntax tree: renaming a variable makes a different program.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Sequence

from workers.sandbox.literal import canonical_arguments
from workers.sandbox.screen import is_too_deep


class _Bare(ast.NodeTransformer):
    """Removes docstrings and annotations."""

    def _without_docstring(self, body: list[ast.stmt]) -> list[ast.stmt]:
        match body:
            case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                return rest or [ast.Pass()]
        return body

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = self._without_docstring(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = self._without_docstring(node.body)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = self._without_docstring(node.body)
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.body = self._without_docstring(node.body)
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            # A bare annotation still makes the name local; `name: 0` keeps that but drops the type.
            node.annotation = ast.Constant(value=0)
            return self.generic_visit(node)
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.generic_visit(ast.copy_location(plain, node))


def syntax_tree(program: str) -> ast.Module:
    """Parse a program. Raises SyntaxError, or ValueError if it cannot be parsed or is nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
    except (RecursionError, MemoryError) as error:
        raise ValueError("nested too deeply") from error
    if is_too_deep(tree):
        raise ValueError("nested too deeply")
    return tree


def normal_form(program: str) -> str:
    """Dump of the syntax tree without docstrings and annotations. Raises as `syntax_tree` does."""
    return ast.dump(_Bare().visit(syntax_tree(program)))


def program_key(program: str) -> str:
    """Hex SHA-256 of the program's normal form."""
    return hashlib.sha256(normal_form(program).encode("utf-8", "surrogatepass")).hexdigest()


def example_key(program: str, inputs: str | Sequence[str]) -> str:
    """Hex SHA-256 key of a program with one argument text, or with several (a problem) in any order.

    Raises `literal.Rejected` if a text is not a list of literals, and as `syntax_tree` does for the program.
    """
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    canonical = "\0".join(sorted(canonical_arguments(text) for text in texts))
    return hashlib.sha256(f"{normal_form(program)}\0{canonical}".encode("utf-8", "surrogatepass")).hexdigest()
