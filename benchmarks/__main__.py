"""`python -m benchmarks [NAME [OPTIONS]]`: prints figures and the command that reproduces them. No NAME lists all."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> dict[str, str]:
    """Benchmark -> the first line of its docstring. Read without importing: some need torch."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if not path.name.startswith("_"):
            found[path.stem] = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return found


def main() -> int:
    known = names()
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        width = max(map(len, known))
        print("python -m benchmarks NAME [OPTIONS]     (make bench ARGS='NAME OPTIONS')\n")
        print("\n".join(f"  {name:<{width}}  {line}" for name, line in known.items()))
        return 0 if len(sys.argv) < 2 else 2
    module = importlib.import_module(f"benchmarks.{sys.argv[1]}")
    return int(module.main(sys.argv[2:]) or 0)


if __name__ == "__main__":
    raise SystemExit(main())
