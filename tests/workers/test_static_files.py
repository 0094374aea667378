"""A checkpoint must load like any model, whatever became of the one before it."""

from __future__ import annotations

import shutil
from pathlib import Path

from profiles.schema import Model
from workers.models.load import StaticFiles, model_directory


def test_config_and_tokenizer_are_written_though_the_directory_they_came_from_was_pruned(tmp_path: Path) -> None:
    source, target = tmp_path / "head", tmp_path / "next"
    shutil.copytree(model_directory(Model()), source)
    target.mkdir()
    static = StaticFiles(source)
    shutil.rmtree(source)
    static.write(target)
    written = {path.name for path in target.iterdir()}
    assert {"config.json", "tokenizer.json"} <= written
