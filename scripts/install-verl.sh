#!/usr/bin/env bash
# Installs verl and what it imports (the extra `verl`) into .venv, or where there is none into `python`'s environment.
# torch, transformers and numpy stay as they are. verl itself comes without its own list, which would replace them.
set -euo pipefail
cd "$(dirname "$0")/.."

python=python
[ -x .venv/bin/python ] && python=.venv/bin/python
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
"$python" - "$lists" <<'PYTHON'
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

lists = Path(sys.argv[1])
extra = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["verl"]
(lists / "wanted").write_text("\n".join(extra) + "\n")
held = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "transformers", "numpy")]
(lists / "held").write_text("\n".join(held) + "\n")
PYTHON
"$python" -m pip install --quiet --constraint "$lists/held" --requirement "$lists/wanted"
"$python" -m pip install --quiet --no-deps verl==0.9.1
"$python" -c 'import importlib.metadata as m; print("verl", m.version("verl"), "with Ray", m.version("ray"))'
