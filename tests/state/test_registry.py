from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state.registry import Registry


class Counter:
    def __init__(self, filename: str, value: int = 0) -> None:
        self.filename, self.value = filename, value

    def save(self, path: Path) -> None:
        path.write_text(str(self.value))

    def load(self, path: Path) -> None:
        self.value = int(path.read_text())


class Forgetful(Counter):
    def save(self, path: Path) -> None:
        """Writes nothing."""


def registry(*items: Counter) -> Registry:
    made = Registry()
    for item in items:
        made.register(item)
    return made


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    registry(Counter("a", 3), Counter("b", 4)).save(tmp_path)
    a, b = Counter("a"), Counter("b")
    registry(a, b).load(tmp_path, ["a", "b"])
    assert (a.value, b.value) == (3, 4)


@pytest.mark.parametrize("name", ["a", "", "../a", "x/y", ".hidden", "MANIFEST.json"])
def test_a_name_that_is_taken_or_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"two stateful objects|cannot name"):
        registry(Counter("a")).register(Counter(name))


def test_an_object_that_wrote_nothing_fails_the_save(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match=r"Forgetful.*rng\.json"):
        registry(Counter("a"), Forgetful("rng.json")).save(tmp_path)


@pytest.mark.parametrize(
    ("held", "named"), [(["a"], "b"), (["a", "b", "c"], "c"), (["a", "b", "vocab", "c"], "c"), ([], "b")]
)
def test_a_missing_or_superfluous_file_is_named_and_nothing_is_loaded(
    tmp_path: Path, held: list[str], named: str
) -> None:
    for name in held:
        (tmp_path / name).write_text("7")
    a = Counter("a", 1)
    with pytest.raises(LonghaulError) as error:
        registry(Counter("b"), a).load(tmp_path, held, static=["vocab"])
    assert f" {named}," in error.value.what and error.value.exit_code == ExitCode.INPUT
    assert a.value == 1


def test_files_that_are_no_state_are_allowed_by_name(tmp_path: Path) -> None:
    registry(Counter("a", 3)).save(tmp_path)
    a = Counter("a")
    registry(a).load(tmp_path, ["a", "vocab.json"], static=["vocab.json"])
    assert a.value == 3
