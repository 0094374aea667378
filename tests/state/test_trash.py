import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state import trash
from state.checkpoint import Saved, verify
from state.layout import RunDir
from tests.state.samples import python, save

DISCARD_CODE = """
import sys
from pathlib import Path
from state import trash
from state.layout import RunDir
trash.discard(RunDir(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def pair(run: RunDir) -> tuple[Saved, Saved]:
    old = save(run, 1)
    return old, save(run, 2, old.checkpoint_id)


def test_an_old_checkpoint_goes_and_a_second_time_is_nothing(run: RunDir, pair: tuple[Saved, Saved]) -> None:
    old, head = pair
    for _ in range(2):
        trash.discard(run, old.directory, head.directory)
        assert list(run.checkpoints.iterdir()) == [head.directory]


@pytest.mark.parametrize("point", ["prune.after_rename", "prune.mid_remove"])
def test_m6_a_kill_while_pruning_is_finished_later(run: RunDir, pair: tuple[Saved, Saved], point: str) -> None:
    old, head = pair
    child = python(DISCARD_CODE, run.root, old.directory, head.directory, LONGHAUL_CRASHPOINT=f"{point}:1")
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not old.directory.exists()
    trash.discard(run, old.directory, head.directory)
    trash.empty(run)
    assert list(run.checkpoints.iterdir()) == [head.directory]
    assert verify(head.directory, deep=True)


def test_the_head_is_never_removed(run: RunDir, pair: tuple[Saved, Saved]) -> None:
    _, head = pair
    with pytest.raises(ValueError, match="it is the head"):
        trash.discard(run, run.checkpoints / ".." / "checkpoints" / head.directory.name, head.directory)
    assert verify(head.directory, deep=True)


def test_nothing_is_removed_while_the_head_is_damaged(run: RunDir, pair: tuple[Saved, Saved]) -> None:
    old, head = pair
    (head.directory / "weights.bin").unlink()
    with pytest.raises(LonghaulError) as error:
        trash.discard(run, old.directory, head.directory)
    assert error.value.exit_code == ExitCode.STORE
    assert verify(old.directory, deep=True)


@pytest.mark.parametrize("name", ["elsewhere", "checkpoints/c1/inner", "checkpoints/link", "checkpoints/../state", "."])
def test_nothing_outside_checkpoints_is_removed(run: RunDir, pair: tuple[Saved, Saved], name: str) -> None:
    for folder in ("elsewhere", "state", "checkpoints/c1/inner"):
        (run.root / folder).mkdir(parents=True, exist_ok=True)
    (run.checkpoints / "link").symlink_to(run.root / "elsewhere")
    with pytest.raises(ValueError, match="refused"):
        trash.discard(run, run.root / name, pair[1].directory)
    assert (run.root / "elsewhere").exists() and (run.root / "state").exists()


def test_a_link_in_the_trash_goes_without_its_target(run: RunDir, pair: tuple[Saved, Saved]) -> None:
    (run.checkpoints / ".trash-x").symlink_to(pair[0].directory)
    trash.empty(run)
    assert verify(pair[0].directory, deep=True)
    assert not (run.checkpoints / ".trash-x").is_symlink()


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EBUSY])
def test_what_a_network_file_system_holds_on_to_is_removed_later(
    run: RunDir, pair: tuple[Saved, Saved], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that some process has open keeps a hidden name there, so that its directory is never empty."""
    old, head = pair

    def refuses(path: Path, **_options: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    with monkeypatch.context() as held:
        held.setattr(shutil, "rmtree", refuses)
        trash.discard(run, old.directory, head.directory)
    assert not old.directory.exists() and len(list(run.checkpoints.iterdir())) == 2
    trash.empty(run)
    assert list(run.checkpoints.iterdir()) == [head.directory]
