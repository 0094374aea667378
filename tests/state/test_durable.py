import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.crash import Armed


def test_a_written_file_is_private_and_leaves_no_temporary(tmp_path: Path) -> None:
    (tmp_path / ".spec.json.tmp").write_bytes(b"left by a crash")
    for content in (b"one", b"two"):
        durable.write_file(tmp_path / "spec.json", content)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("spec.json", b"two")]
    assert (tmp_path / "spec.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (errno.ENOSPC, ExitCode.DISK, "df -h"),
        (errno.EDQUOT, ExitCode.DISK, "df -h"),
        (errno.EROFS, ExitCode.DISK, "findmnt"),
        (errno.EIO, ExitCode.DISK, "dmesg"),
        (errno.EACCES, ExitCode.PERMISSION, "ls -ld"),
        (errno.EPERM, ExitCode.PERMISSION, "ls -ld"),
    ],
)
def test_d11_d12_a_person_is_told_what_failed_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: ExitCode, word: str
) -> None:
    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "spec.json").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LonghaulError) as error:
        durable.write_file(tmp_path / "spec.json", b"new")
    assert error.value.exit_code == code
    assert os.strerror(number) in error.value.what and word in error.value.next_command
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("spec.json", b"old")]


def test_a_bug_of_ours_is_not_called_a_disk_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.write_file(tmp_path / "nowhere" / "spec.json", b"")


def test_a_full_disk_before_the_rename_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.write_file(tmp_path / "spec.json", b"old")
    monkeypatch.setattr(durable, "crash_point", Armed("durable.before_rename:1:enospc").hit)
    with pytest.raises(LonghaulError):
        durable.write_file(tmp_path / "spec.json", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("spec.json", b"old")]


def test_writing_over_a_link_replaces_the_link_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "spec.json").symlink_to(tmp_path / "target")
    durable.write_file(tmp_path / "spec.json", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "spec.json").is_symlink()


def test_a_directory_is_never_renamed_over_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        durable.rename_dir(tmp_path / "a", tmp_path / "b")


def test_new_directories_are_private_and_old_ones_as_they_were(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    durable.make_dir(tmp_path / "x" / "y")
    durable.make_dir(tmp_path / "x" / "y")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "x", tmp_path / "x" / "y")]
    assert modes == [0o755, 0o700, 0o700]


@pytest.mark.parametrize("victim", ["root", "root/link", "root/../other", "other"])
def test_a_tree_is_removed_only_inside_its_root_and_never_through_a_link(tmp_path: Path, victim: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="refused"):
        durable.remove_tree(tmp_path / victim, tmp_path / "root")
    assert (tmp_path / "other").is_dir()


def test_links_inside_a_removed_tree_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "root" / "tree").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"precious")
    (tmp_path / "root" / "tree" / "link").symlink_to(tmp_path / "other")
    for _ in range(2):
        durable.remove_tree(tmp_path / "root" / "tree", tmp_path / "root")
    assert (tmp_path / "other" / "file").read_bytes() == b"precious"
    assert not list((tmp_path / "root").iterdir())


def test_a_tree_that_two_remove_at_once_is_gone_for_both(tmp_path: Path) -> None:
    tree = tmp_path / "root" / "tree"
    for number in range(20):
        (tree / str(number)).mkdir(parents=True)
        for name in range(100):
            (tree / str(number) / str(name)).touch()
    both = threading.Barrier(2)

    def remove() -> None:
        both.wait()
        durable.remove_tree(tree, tmp_path / "root")

    with ThreadPoolExecutor(2) as pool:
        for removal in [pool.submit(remove) for _ in range(2)]:
            removal.result()
    assert not tree.exists()


def test_d10_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = durable.Appender(tmp_path / "events.jsonl")
    appender.append(b"first")
    real = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(LonghaulError) as error:
            appender.append(b"second")
    assert error.value.exit_code == ExitCode.DISK
    appender.append(b"third")
    assert (tmp_path / "events.jsonl").read_bytes() == b"first\nthird\n"


def test_d10_on_a_device_that_is_really_full() -> None:
    with pytest.raises(LonghaulError) as error:
        durable.Appender(Path("/dev/full")).append(b"x")
    assert error.value.exit_code == ExitCode.DISK


def test_a_torn_line_of_an_earlier_writer_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"whole\nto")
    durable.Appender(tmp_path / "events.jsonl").append(b"next")
    assert (tmp_path / "events.jsonl").read_bytes() == b"whole\nto\nnext\n"


def test_a_line_is_one_line(tmp_path: Path) -> None:
    appender = durable.Appender(tmp_path / "events.jsonl")
    with pytest.raises(ValueError, match="newline"):
        appender.append(b"a\nb")
    appender.close()
    appender.close()
