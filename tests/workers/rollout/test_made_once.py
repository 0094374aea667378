"""Compiled CUDA code is made once on a machine, and never taken from a file that is not as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from state.cache import VARIABLE
from workers.rollout.graph.made_once import Compiled, folder, kept

FACTS = {"source": "__global__ void f() {}", "names": ("f",), "options": ("--gpu-architecture=sm_90",)}
CODE = Compiled(b"\x7fELF code", {"f": b"_Z1fv"})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Compiler:
    """Counts how often it is asked."""

    def __init__(self, code: Compiled = CODE) -> None:
        self.code, self.times = code, 0

    def __call__(self) -> Compiled:
        self.times += 1
        return self.code


def test_the_same_code_is_compiled_once() -> None:
    compiler = Compiler()
    assert [kept(FACTS, compiler, Compiled) for _ in range(3)] == [CODE] * 3
    assert compiler.times == 1


@pytest.mark.parametrize("name", FACTS)
def test_whatever_the_code_depends_on_makes_it_other_code(name: str) -> None:
    kept(FACTS, Compiler(), Compiled)
    other = Compiled(b"other code", {})
    assert kept({**FACTS, name: ("changed",)}, Compiler(other), Compiled) == other
    assert kept(FACTS, Compiler(other), Compiled) == CODE


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut short"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], id="one bit"),
    ],
)
def test_a_damaged_file_is_made_again(damage: Callable[[bytes], bytes]) -> None:
    kept(FACTS, Compiler(), Compiled)
    (path,) = folder().iterdir()
    path.write_bytes(damage(path.read_bytes()))
    compiler = Compiler()
    assert [kept(FACTS, compiler, Compiled) for _ in range(2)] == [CODE] * 2
    assert compiler.times == 1


def test_without_a_folder_to_write_to_each_process_compiles_for_itself(own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    compiler = Compiler()
    assert [kept(FACTS, compiler, Compiled) for _ in range(2)] == [CODE] * 2
    assert compiler.times == 2


def test_nothing_else_is_left_in_the_folder() -> None:
    kept(FACTS, Compiler(), Compiled)
    assert len(list(folder().iterdir())) == 1
