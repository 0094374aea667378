"""Runs docs/notebook.ipynb from its first cell to its last, and stores what comes out.

    .venv/bin/python scripts/notebook.py

The run lies in a temporary folder. A test runs the same cells with a shorter profile and stores nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOK = REPOSITORY / "docs/notebook.ipynb"
PARAMETERS = "parameters"
"""Tag of the cell that says which profile runs, and for how long."""


def executed(folder: Path, parameters: str = "") -> Any:
    """The notebook with the outputs of a run in `folder`. parameters: source in place of the cell of that tag.

    Raises nbclient.exceptions.CellExecutionError for a cell that fails.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if parameters:
        (cell,) = (one for one in notebook.cells if PARAMETERS in one.metadata.get("tags", ()))
        cell.source = parameters
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources).execute()


def plain(notebook: Any) -> Any:
    """Without what differs from machine to machine and from run to run: times of cells, versions of the kernel."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags"}
    return notebook


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="longhaul-notebook-") as folder:
        nbformat.write(plain(executed(Path(folder))), NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
