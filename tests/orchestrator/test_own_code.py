"""Files of the user's own code: found from any folder, hashed, never imported by the master."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.own_code import with_own_code
from profiles.changes import diff, refusal
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile
from profiles.schema import Profile

REFUSES_IMPORT = "raise SystemExit('imported')\ndef good(problem, completion, facts): return 1.0\n"


def naming(*rewards: str) -> Profile:
    return load_profile("pocket-grpo", [f"grpo.rewards={list(rewards)}".replace("'", '"')]).profile


def test_a_file_is_named_by_its_absolute_path_and_its_hash(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REFUSES_IMPORT)
    found = with_own_code(naming("correct", "mine.py:good"), tmp_path)
    assert found.grpo.rewards == ("correct", f"{tmp_path / 'mine.py'}:good")
    assert [one.split()[0] for one in found.grpo.reward.files] == ["good"]
    assert with_own_code(found, Path("/")) == found, "from any other folder too"


def test_a_function_that_has_changed_must_be_accepted(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(REFUSES_IMPORT)
    before = with_own_code(naming("mine.py:good"), tmp_path)
    file.write_text(REFUSES_IMPORT + "# changed\n")
    changes = diff(before, with_own_code(before, tmp_path))
    assert [change.key for change in changes] == ["grpo.reward.files"]
    assert refusal(changes, False, "-") is not None and refusal(changes, True, "-") is None


def test_a_module_is_found_without_importing_it_or_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for file in ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/mine.py"):
        (tmp_path / file).write_text(REFUSES_IMPORT)
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = with_own_code(naming("outer.inner.mine:good"), tmp_path).grpo.reward.files
    (same,) = with_own_code(naming(f"{tmp_path}/outer/inner/mine.py:good"), tmp_path).grpo.reward.files
    assert found == same


@pytest.mark.parametrize("name", ["mine.py:good", "no_such_module:good", "json.no_such_module:good"])
def test_code_that_is_not_there_is_refused_before_anything_starts(name: str, tmp_path: Path) -> None:
    with pytest.raises(LonghaulError) as caught:
        with_own_code(naming(name), tmp_path)
    assert caught.value.exit_code == ExitCode.INPUT and caught.value.next_command
    assert name.partition(":")[0].rpartition("/")[2] in caught.value.what


def test_a_profile_without_functions_stays_as_it_is() -> None:
    profile = load_profile("pocket").profile
    assert with_own_code(profile, Path("/")) is profile
