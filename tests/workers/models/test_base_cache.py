"""A base is quantised once: later workers read the same bits, whatever happened to the first, or to its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model
from tests.workers.families import write
from workers.models import base_cache, file_hashes, load, reader
from workers.models.identity import base_sha256

CPU = torch.device("cpu")
IDS = torch.tensor([[(7919 * place + 13) % 256 for place in range(20)]])


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    write("llama, head of 16, one key head, biases, tied", tmp_path / "base")
    return tmp_path / "base"


def opened(base: Path, **knobs: Any) -> Any:
    settings: dict[str, Any] = {"dtype": "bfloat16", "quantization": "nf4"}
    return load.load_model(base, Model(path=str(base), **(settings | knobs)), CPU)


def bits_of(model: Any) -> dict[str, Tensor]:
    """Every tensor of the model, the states of 4-bit weights and buffers among them."""
    return {**model.state_dict(), **dict(model.named_buffers())}


def assert_same_bits(one: Any, other: Any) -> None:
    mine, theirs = bits_of(one), bits_of(other)
    assert mine.keys() == theirs.keys() and any("absmax" in name for name in mine)
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(
            tensor.contiguous().view(-1).view(torch.uint8), theirs[name].contiguous().view(-1).view(torch.uint8)
        )


@pytest.fixture
def quantised(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that are quantised while the test runs."""
    seen: list[Path] = []
    real = reader.read

    def counted(directory: Path, *args: Any, quantizes: bool = False, **kwargs: Any) -> Any:
        seen.extend([directory] * quantizes)
        return real(directory, *args, quantizes=quantizes, **kwargs)

    monkeypatch.setattr(reader, "read", counted)
    return seen


def entry() -> Path:
    ((found, _, _),) = base_cache.entries()
    return found


def test_what_is_read_has_the_bits_of_what_is_quantised_anew(base: Path, quantised: list[Path]) -> None:
    first, second, anew = opened(base), opened(base), opened(base, cache_gib=0)
    assert quantised == [base, base]
    assert_same_bits(first, second)
    assert_same_bits(anew, second)
    with torch.no_grad():
        assert torch.equal(anew(IDS).logits, second(IDS).logits)
    assert not any(parameter.requires_grad for parameter in second.parameters() if parameter.dtype == torch.uint8)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda base: shutil.copy(base / "config.json", base / "tokenizer.json"), id="another tokenizer"),
        pytest.param(
            lambda base: save_file(
                {name: one * 2 for name, one in load_file(base / "model.safetensors").items()},
                base / "model.safetensors", {"format": "pt"},
            ),
            id="other weights",
        ),
    ],
)  # fmt: skip
def test_another_base_in_the_same_place_is_quantised_by_itself(
    change: Callable[[Path], object], base: Path, quantised: list[Path]
) -> None:
    opened(base)
    change(base)
    opened(base)
    assert len(quantised) == len(base_cache.entries()) == 2


def test_what_the_bits_depend_on_is_in_the_name(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(base)
    opened(base, dtype="float32")
    monkeypatch.setattr(base_cache, "version", lambda name: "99")
    opened(base)
    assert len(base_cache.entries()) == 3


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda one: flipped(one / "model.safetensors"), id="a bit"),
        pytest.param(lambda one: os.truncate(one / "model.safetensors", 4000), id="half a file"),
        pytest.param(lambda one: (one / "model.safetensors").unlink(), id="no weights"),
        pytest.param(lambda one: flipped(one / "config.json"), id="config"),
        pytest.param(lambda one: (one / "parts.json").write_text("{"), id="list"),
        pytest.param(lambda one: (one / "parts.json").unlink(), id="no list"),
    ],
)
def test_a_damaged_entry_is_made_again(damaged: Callable[[Path], object], base: Path, quantised: list[Path]) -> None:
    first = opened(base)
    damaged(entry())
    again, third = opened(base), opened(base)
    assert len(quantised) == 2
    assert_same_bits(first, again)
    assert_same_bits(first, third)
    assert base_cache.damage(entry()) == ""


LOAD = """
import sys, torch
from pathlib import Path
from profiles.schema import Model
from workers.models import load
base = Path(sys.argv[1])
load.load_model(base, Model(path=str(base), dtype="bfloat16", quantization="nf4"), torch.device("cpu"))
"""


def start(base: Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, str(base)], env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )


@pytest.mark.timeout(300)
def test_a_worker_killed_while_it_writes_leaves_nothing_that_counts(
    base: Path, quantised: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    base_sha256(base)  # so that the list of parts is the first small file that the other process writes
    killed = start(base, LONGHAUL_CRASHPOINT="durable.before_rename:1")
    assert killed.wait() == -9
    assert base_cache.entries() == []
    assert list(base_cache.folder().glob("*.making"))
    opened(base)
    assert len(quantised) == 1 and base_cache.damage(entry()) == ""
    assert not list(base_cache.folder().glob("*.making"))


@pytest.mark.timeout(300)
def test_two_workers_at_once_make_one_entry(base: Path, quantised: list[Path]) -> None:
    both = [start(base), start(base)]
    assert [one.wait() for one in both] == [0, 0]
    assert base_cache.damage(entry()) == ""
    opened(base)
    assert quantised == []


def test_what_was_used_least_recently_goes_when_there_is_too_much(base: Path, quantised: list[Path]) -> None:
    opened(base)
    size = base_cache.entries()[0][1]
    limit = 1.6 * size / base_cache.GIB
    opened(base, dtype="float32", cache_gib=2 * limit)
    os.utime(base_cache.entries()[0][0] / base_cache.MANIFEST, (1, 1))
    oldest = base_cache.entries()[0][0]
    write("llama", base)
    opened(base, cache_gib=2 * limit)
    assert oldest not in [one for one, _, _ in base_cache.entries()] and len(base_cache.entries()) == 2


def test_an_entry_that_a_worker_reads_stays(base: Path) -> None:
    opened(base)
    mine = entry()
    with base_cache._held(mine.name, base_cache.fcntl.LOCK_SH):
        assert not base_cache._delete(mine)
    assert base_cache._delete(mine) and not mine.exists()


@pytest.mark.parametrize("why", ["limit", "disk", "no folder"])
def test_without_room_the_base_is_quantised_every_time(
    why: str, base: Path, quantised: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gib = 1e-6 if why == "limit" else 64.0
    if why == "disk":
        monkeypatch.setattr(base_cache.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    if why == "no folder":
        (base.parent / "cache").mkdir(exist_ok=True)
        shutil.rmtree(base.parent / "cache/nf4", ignore_errors=True)
        (base.parent / "cache/nf4").write_text("a file")
    for _ in range(2):
        opened(base, cache_gib=gib)
    assert len(quantised) == 2
    assert caplog.text.count("the quantised base") == 2


def test_a_weight_that_is_no_number_is_refused_before_4_bits_hide_it(base: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    for changes in ({}, {"quantization": "none"}, {"quantization": "none", "dtype": "float32"}):
        with pytest.raises(LonghaulError, match=r"NaN or infinite, in model.layers.1.mlp.up_proj.weight") as caught:
            opened(base, **changes)
        assert caught.value.exit_code is ExitCode.INPUT
    assert base_cache.entries() == []


# --- hashes of files --------------------------------------------------------------------------------------------------


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long enough."""
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 0)


def test_an_unchanged_file_is_hashed_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first = base_sha256(base)
    monkeypatch.setattr(file_hashes.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert base_sha256(base) == first


def test_a_file_that_changed_just_now_is_hashed_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change within the same tick of the clock would not show."""
    first = base_sha256(base)
    assert not list((base.parent / "cache").glob("hashes/*"))
    assert base_sha256(base) == first


def test_other_bytes_with_the_old_modification_time_are_noticed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first, path = base_sha256(base), base / "model.safetensors"
    before = path.stat()
    flipped(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert base_sha256(base) != first


def test_a_copy_in_the_place_of_a_file_is_hashed_anew_and_is_the_same_base(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    first = base_sha256(base)
    shutil.copy2(base / "model.safetensors", base / "copy")
    (base / "copy").rename(base / "model.safetensors")
    assert base_sha256(base) == first


@pytest.mark.parametrize("content", [b"", b"{", b'{"path": 1}', b"\xff"])
def test_a_damaged_record_is_as_none(content: bytes, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    first = base_sha256(base)
    for record in (base.parent / "cache/hashes").iterdir():
        record.write_bytes(content)
    assert base_sha256(base) == first
