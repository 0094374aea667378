"""The notebook of the documentation, cell by cell in a Jupyter kernel, but with the short profile of the same model."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import nbformat
import pytest

import longhaul
from tests import REPOSITORY

SPEC = importlib.util.spec_from_file_location("notebook", REPOSITORY / "scripts/notebook.py")
assert SPEC is not None and SPEC.loader is not None
notebook = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebook)

SHORT = 'profile = "pocket-debug"\ncycles = 1'


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    done = notebook.executed(tmp_path, parameters=SHORT)
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    said = "".join(one["text"] for one in outputs if one.output_type == "stream")
    assert said.startswith("finished: 3 steps") and said.count("--- ") == 2
    (plot,) = (one for one in outputs if one.output_type == "display_data")
    assert "image/png" in plot["data"]
    assert longhaul.open_run("notebook", tmp_path / "runs").status().state == "finished"


def test_the_stored_outputs_are_those_of_a_whole_run_and_small() -> None:
    stored = nbformat.read(notebook.NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert stored == notebook.plain(nbformat.read(notebook.NOTEBOOK, as_version=4))
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds and kinds.count("display_data") == 1
    assert "finished: 100 steps" in cells[1].outputs[0]["text"]
    assert notebook.NOTEBOOK.stat().st_size < 100_000
