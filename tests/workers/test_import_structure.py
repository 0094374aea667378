"""What transformers finds out about its own files is kept, and is what it would find out again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import import_utils

from tests import REPOSITORY
from workers.import_structure import FUNCTION, Structure, kept, place_of

SOURCE = Path(import_utils.__file__)
MODELS = SOURCE.parents[1] / "models"
ORIGINAL = getattr(import_utils, FUNCTION)
IN_A_WORKER = """
import sys
from workers import import_structure
import_structure.install()
import_structure.install()
import transformers
from transformers.utils import import_utils
searched = import_utils.create_import_structure_from_path.cache_info().misses
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen3ForCausalLM
from transformers.models.llama import LlamaForCausalLM
print(searched, len(dir(transformers)), len(dir(transformers.models)))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counted:
    def __init__(self, structure: Structure) -> None:
        self.structure, self.calls = structure, list[tuple[Any, ...]]()

    def __call__(self, path: Any, prefix: str | None = None) -> Structure:
        self.calls.append((path, prefix))
        return self.structure


@pytest.mark.parametrize(("path", "prefix"), [(MODELS, "models"), (str(MODELS / "__init__.py"), None)])
def test_what_is_kept_is_what_transformers_finds(path: Any, prefix: str | None) -> None:
    expected = ORIGINAL(path, prefix) if prefix else ORIGINAL(path)
    for _ in ("made", "read"):
        found = kept(ORIGINAL, SOURCE)(path, prefix) if prefix else kept(ORIGINAL, SOURCE)(path)
        assert found == expected and list(found) == list(expected)
        assert [list(one) for one in found.values()] == [list(one) for one in expected.values()]


def tree(tmp_path: Path, folder: str) -> tuple[Path, Path]:
    """A release of transformers with nothing in it: (its models, the file that searches them)."""
    root = tmp_path / folder / "transformers"
    for part in ("models", "utils"):
        (root / part).mkdir(parents=True)
    (root / "models" / "__init__.py").write_text("")
    (root / "utils" / "import_utils.py").write_text("")
    return root / "models", root / "utils" / "import_utils.py"


STRUCTURE: Structure = {frozenset(): {"a.b": {"C", "D"}}, frozenset({"torch", "vision"}): {"e": {"F"}}}


def test_the_search_is_made_once_for_a_release_and_again_for_the_next_one(tmp_path: Path) -> None:
    models, source = tree(tmp_path, "site-packages")
    define = Counted(STRUCTURE)
    for _ in range(3):
        assert kept(define, source)(models) == STRUCTURE
        assert kept(define, source)(str(models / "__init__.py"), "models") == {
            needed: {f"models.{one}": names for one, names in by.items()} for needed, by in STRUCTURE.items()
        }
    assert len(define.calls) == 1
    os.utime(models, ns=(1, 1))
    kept(define, source)(models)
    assert len(define.calls) == 2


def test_other_folders_and_a_checkout_that_may_change_are_searched_each_time(tmp_path: Path, cache: Path) -> None:
    models, source = tree(tmp_path, "site-packages")
    checkout, its_source = tree(tmp_path, "src")
    define = Counted(STRUCTURE)
    for _ in range(2):
        kept(define, source)(models / "qwen2" / "__init__.py", "x")
        kept(define, its_source)(checkout)
    assert define.calls == [(models / "qwen2" / "__init__.py", "x"), (checkout, None)] * 2
    assert not cache.exists()


@pytest.mark.parametrize("bytes_", [b"", b"{}", b"[[1, 2]]", b"\xff"])
def test_a_damaged_file_is_made_again(tmp_path: Path, bytes_: bytes) -> None:
    models, source = tree(tmp_path, "site-packages")
    kept(Counted(STRUCTURE), source)(models)
    place_of(models, source).write_bytes(bytes_)
    define = Counted(STRUCTURE)
    for _ in range(2):
        assert kept(define, source)(models) == STRUCTURE
    assert len(define.calls) == 1


def test_where_nothing_can_be_kept_the_search_is_made_each_time(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file is in the way")
    models, source = tree(tmp_path, "site-packages")
    define = Counted(STRUCTURE)
    for _ in range(2):
        assert kept(define, source)(models) == STRUCTURE
    assert len(define.calls) == 2


def test_a_second_process_imports_all_of_transformers_without_the_search() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", IN_A_WORKER], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    )
    assert int(first[0]) > 300 and int(second[0]) < 10
    assert first[1:] == second[1:]
