"""A worker whose cycle is done holds no memory of a device, so that the next one may train while its process ends."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from profiles.load import load_profile
from profiles.schema import Validation
from tests.workers.harness import fake_profile, make_spec
from workers import kinds, runtime
from workers.contract import Message, WorkerSpec
from workers.control import Control
from workers.memory import release as memory
from workers.memory.release import MOST_LEFT, free_for_next, release

OVERLAP = Validation(overlap=1, suites=("fake",))


class Told(Control):
    """A link without a master. sent: what the worker said."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(None, spec.token)
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


def device(*, held: list[int], is_used: bool = True) -> ModuleType:
    """What `release` asks of torch. held: bytes of each device after its cache is empty."""
    module: Any = ModuleType("torch")
    module.cuda = SimpleNamespace(
        is_initialized=lambda: is_used,
        empty_cache=lambda: None,
        memory_reserved=lambda number: held[number],
        device_count=lambda: len(held),
    )
    return module  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("held", "is_used", "is_free"),
    [
        pytest.param([0, 0], True, True, id="nothing stays"),
        pytest.param([MOST_LEFT], True, True, id="work space stays"),
        pytest.param([MOST_LEFT, 1], True, False, id="something is still referred to"),
        pytest.param([1 << 40], False, True, id="no device was used"),
    ],
)
def test_a_process_is_free_only_if_its_devices_are(
    held: list[int], is_used: bool, is_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", device(held=held, is_used=is_used))
    assert release() is is_free


def told_by(spec: WorkerSpec) -> list[str]:
    control = Told(spec)
    code = runtime.carry_out(spec, control, kinds.worker_kind_named(spec.profile.run.worker).job(spec, None))
    free_for_next(spec, control, code)
    return [message.type for message in control.sent if message.type in ("done", "freed")]


@pytest.mark.parametrize(
    ("validation", "fault", "is_free", "expected"),
    [
        pytest.param(OVERLAP, "", True, ["done", "freed"], id="the next one may train"),
        pytest.param(OVERLAP, "", False, ["done"], id="it holds memory"),
        pytest.param(OVERLAP, "exception:2", True, ["done"], id="it has failed"),
        pytest.param(Validation(suites=("fake",)), "", True, ["done"], id="nobody waits"),
    ],
)
def test_the_master_hears_that_memory_is_free_after_the_result(
    validation: Validation,
    fault: str,
    is_free: bool,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "release", lambda: is_free)
    profile = msgspec.structs.replace(fake_profile(fault), validation=validation)
    assert told_by(make_spec(tmp_path, profile, head=None, end_step=3)) == expected


def weights() -> list[int]:
    """Weights that some object refers to, by their identity."""
    gc.collect()
    return [id(one) for one in gc.get_objects() if type(one) is torch.nn.Parameter]


@pytest.mark.parametrize("name", ["pocket-debug", "pocket-grpo-debug"])
def test_nothing_refers_to_a_model_once_its_cycle_is_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its memory could not be freed before its process ends."""
    left: list[int] = []

    def look() -> bool:
        left.append(len(set(weights()) - before))
        return True

    monkeypatch.setattr(memory, "release", look)
    profile = load_profile(name, ["validation.overlap=1"]).profile
    before = set(weights())
    assert told_by(make_spec(tmp_path, profile, head=None, end_step=2)) == ["done", "freed"]
    assert left == [0]
