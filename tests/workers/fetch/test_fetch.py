"""Models of the hub by name: fetched before a run begins, from a real server that breaks off, moves and goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.line_worker import started
from profiles.errors import ExitCode, LonghaulError
from profiles.hub_model import HubModel, hub_cache, hub_model, snapshot_of
from profiles.load import from_json
from profiles.schema import Profile
from state.layout import RunDir
from state.reader import Reader
from tests import REPOSITORY
from tests.workers.families import write
from tests.workers.fetch.hub_server import Hub, serving
from workers.line_contract import Fetched, FetchSpec, Note, Said

NAME = "someone/tiny-qwen"
SHORT = [
    "model.random_init=off", "run.max_cycles=1", "run.steps_per_cycle=1", "run.threads=1", "grpo.sent.enabled=false",
    "grpo.problems=4", "validation.examples_per_task=1", "sampling.max_completion_tokens=12", "model.dtype=float32",
    "model.quantization=none",
]  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    write("qwen2", tmp_path / "made")
    found = Hub(NAME)
    found.add({path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()})
    with serving(found):
        yield found


def run(hub: Hub, root: Path, *changes: str, name: str = NAME, extra: tuple[str, ...] = ()) -> tuple[int, str]:
    overrides = [word for one in (*SHORT, f"model.path={name}", *changes) for word in ("--set", one)]
    command = [
        sys.executable, "-m", "orchestrator", "run", "--profile", "grpo-1.5b-8gb-debug", "--plain", "--run", "one",
        "--runs", str(root / "runs"), *overrides, *extra,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=environment_of(hub, root), timeout=500
    )
    return done.returncode, done.stdout + done.stderr


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def environment_of(hub: Hub, root: Path) -> dict[str, str]:
    asking = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    return {
        **asking, "HF_ENDPOINT": hub.url, "HF_HOME": str(root / "hf"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "5", "HF_HUB_DOWNLOAD_TIMEOUT": "5",
    }  # fmt: skip


def stored(root: Path) -> Profile:
    with closing(Reader.open(RunDir(root / "runs/one"))) as reader:
        return from_json(reader.profile_json())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_stays_with_the_commit_that_it_began_with(hub: Hub, tmp_path: Path) -> None:
    """The branch moves, then the hub goes away, then the files are lost: the run goes on with the same weights."""
    (first,) = hub.commits
    code, said = run(hub, tmp_path)
    assert code == 0, said
    assert stored(tmp_path).model.revision == first and f"model: {NAME} at {first[:12]}" in said
    second = hub.add({**hub.commits[first], "config.json": hub.commits[first]["config.json"] + b"\n"})
    assert hub.refs["main"] == second
    code, said = run(hub, tmp_path, "run.max_cycles=2")
    assert code == 0 and stored(tmp_path).model.revision == first, said
    shutil.rmtree(tmp_path / "hf")
    code, said = run(hub, tmp_path, "run.max_cycles=3")
    assert code == 0 and stored(tmp_path).model.revision == first, said


def fetched(hub: Hub, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Said]:
    """The messages of a fetch by itself, without a run."""
    for name in OFFLINE:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment_of(hub, root).items():
        monkeypatch.setenv(name, value)
    return heard()


def heard() -> list[Said]:
    with started("workers.fetch", FetchSpec(NAME, "", is_commit=False), name="fetch", kept="") as worker:
        return list(worker.hear())


@pytest.mark.timeout(300)
def test_a_broken_transfer_goes_on_where_it_ended(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than the 10 MB that huggingface_hub writes at once."""
    (files,) = hub.commits.values()
    files["model.safetensors"] = content = os.urandom(48_000_000)
    hub.breaks = 2
    found = fetched(hub, tmp_path, monkeypatch)[-1]
    assert isinstance(found, Fetched)
    assert (Path(found.directory) / "model.safetensors").read_bytes() == content
    begins = [int(one.partition("bytes=")[2].partition("-")[0]) for one in hub.of_weights() if "bytes=" in one]
    assert begins == sorted(begins) and max(begins) >= 10_000_000, hub.of_weights()


@pytest.mark.timeout(300)
def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pretended = {"model.safetensors": 1 << 60}
    with pytest.raises(LonghaulError) as caught:
        fetched(hub, tmp_path, monkeypatch)
    assert caught.value.exit_code is ExitCode.DISK
    assert "HF_HOME=/a/larger/disk" in caught.value.next_command and hub.of_weights() == []


@pytest.mark.timeout(300)
def test_a_hub_that_does_not_answer_says_what_to_copy_where(hub: Hub, tmp_path: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    code, said = run(hub, tmp_path)
    assert code == ExitCode.INPUT
    assert f"{NAME} is not on this machine, and the hub did not answer" in said
    assert f"hf download {NAME} --local-dir models/tiny-qwen" in said and "model.path=models/tiny-qwen" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "said"),
    [("name", "the hub has no such model"), ("revision", "has no revision v9"), ("gated", "accepted its terms"),
     ("garbled", "arrived damaged and was deleted"), ("format", "no weights in safetensors")],
)  # fmt: skip
def test_what_the_hub_cannot_give_is_told(fault: str, said: str, hub: Hub, tmp_path: Path) -> None:
    (files,) = hub.commits.values()
    hub.is_gated, hub.garbles = fault == "gated", fault == "garbled"
    if fault == "format":
        files["pytorch_model.bin"] = files.pop("model.safetensors")
    name = {"name": "someone/other", "revision": f"{NAME}@v9"}.get(fault, NAME)
    code, output = run(hub, tmp_path, name=name)
    assert code == ExitCode.INPUT and said in output, output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B")),
        ("Qwen/Qwen3-0.6B@v1.0", HubModel("Qwen/Qwen3-0.6B", "v1.0")),
        ("models/Qwen3-0.6B", None), ("pocket", None), ("/data/Qwen3", None), ("a/b/c", None), ("../x", None),
        ("~/models", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_of_the_hub_is_told_from_a_folder(
    path: str, found: HubModel | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_model(path) == found
    if found is not None:
        (tmp_path / "Qwen").mkdir()
        assert hub_model(path) is None and hub_model(path, is_known=True) == found


@pytest.mark.parametrize("variable", ["", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_place_of_downloads_is_the_one_of_huggingface_hub(variable: str, tmp_path: Path) -> None:
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    named = {variable: str(tmp_path / "x")} if variable else {}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **named}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    places = {"HOME": str(tmp_path), **named}
    assert str(hub_cache(places)).replace("~", str(tmp_path)) == done.stdout.strip() or not variable
    assert snapshot_of("a/b", "c" * 40).parts[-3:] == ("models--a--b", "snapshots", "c" * 40)


@pytest.mark.timeout(300)
def test_a_machine_that_is_told_to_stay_offline_says_so(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(hub, tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    note, found = heard()
    assert isinstance(note, Note) and note.text.startswith("the hub was not asked, because HF_HUB_OFFLINE is set")
    assert isinstance(found, Fetched) and Path(found.directory, "model.safetensors").exists()
    shutil.rmtree(tmp_path / "hf")
    with pytest.raises(LonghaulError, match="is not on this machine, and the hub was not asked") as caught:
        heard()
    assert caught.value.next_command == "unset HF_HUB_OFFLINE, then the same command"
