"""Which engine is used, which takes over if it fails, and the message to the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Profile, Sampling, Vllm
from tests.workers.rollout.models import REQUESTS, tiny_model
from workers.evaluate.examinee import remedy_of
from workers.models.adapters import inject
from workers.models.load import Tokenizer
from workers.rollout import engine
from workers.rollout.continuous import ContinuousEngine
from workers.rollout.engine import EngineUnavailable, Request, Rollout
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine
from workers.rollout.select import Fallback, Portions, engine_of

MODEL = tiny_model()
POCKET = Path(__file__).parents[3] / "workers" / "pocket" / "weights"
HOW = engine.Sampling(max_new_tokens=6)


def profile(**sampling: object) -> Profile:
    return Profile(name="p", sampling=Sampling(**sampling))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"), [("native", NativeEngine), ("hf", HfEngine), ("continuous", ContinuousEngine)]
)
def test_the_profile_names_the_engine(name: str, kind: type) -> None:
    portions = engine_of(MODEL, profile(engine=name), Tokenizer(POCKET))
    assert isinstance(portions.engine, kind)
    assert len(portions.generate(REQUESTS, HOW)) == len(REQUESTS)


def test_vllm_on_a_machine_without_it_stops_the_run_with_the_reason() -> None:
    with pytest.raises(LonghaulError) as caught:
        engine_of(MODEL, profile(engine="vllm"), Tokenizer(POCKET))
    assert caught.value.what.startswith("no rollout engine works; vllm: vLLM ")
    assert caught.value.exit_code is ExitCode.INPUT
    assert 'sampling.fallback=["native"]' in caught.value.next_command


@pytest.mark.parametrize(
    ("tried", "remedy"),
    [
        (("vllm",), "the same command with --engine native or --engine hf, or fix the cause"),
        (("native",), "the same command with --engine hf, or fix the cause"),
        (("auto",), "the same command with --engine hf, or fix the cause"),
        (("vllm", "native", "hf"), "fix the cause"),
    ],
)
def test_an_evaluation_is_told_the_engines_that_it_did_not_try(tried: tuple[str, ...], remedy: str) -> None:
    assert remedy_of(profile(engine=tried[0], fallback=tried[1:])).next_command == remedy


def test_the_next_engine_takes_over_and_a_person_is_told() -> None:
    told: list[str] = []
    portions = engine_of(MODEL, profile(engine="vllm", fallback=("native",)), Tokenizer(POCKET), warn=told.append)
    assert isinstance(portions.engine, NativeEngine)
    assert len(told) == 1 and "native" in told[0] and "vllm: vLLM " in told[0]


def test_an_adapter_that_vllm_has_no_room_for_is_left_to_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if it were installed
    model, told = tiny_model(), list[str]()
    inject(model, Adapter(rank=513, implementation="own"), 0)
    portions = engine_of(model, profile(engine="vllm", fallback=("native",)), Tokenizer(POCKET), warn=told.append)
    assert isinstance(portions.engine, NativeEngine)
    assert len(told) == 1 and "vLLM cannot start: the adapter has rank 513, above the largest" in told[0]


class Tired:
    """Works a while, then no more."""

    has_queue = True

    def __init__(self, calls: int) -> None:
        self.left, self.is_closed = calls, False

    def generate(self, requests: Sequence[Request], sampling: engine.Sampling) -> list[Rollout]:
        self.left -= 1
        if self.left < 0:
            raise EngineUnavailable("it did not wake: out of memory")
        return NativeEngine(MODEL).generate(requests, sampling)

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_an_engine_that_fails_in_the_middle_is_closed_and_no_rollout_is_lost() -> None:
    told: list[str] = []
    tired = Tired(calls=1)
    portions = Portions(Fallback({"tired": lambda: tired, "native": lambda: NativeEngine(MODEL)}, told.append), 2)
    assert len(portions.generate(REQUESTS, HOW)) == len(REQUESTS)
    rollouts = portions.generate(REQUESTS, HOW)
    assert [one.completion_ids for one in rollouts] == [
        one.completion_ids for one in NativeEngine(MODEL).generate(REQUESTS, HOW)
    ]
    assert tired.is_closed
    assert isinstance(portions.engine, NativeEngine)
    assert told == ["rollouts now come from the engine native. Tired: it did not wake: out of memory"]


def test_a_rehearsal_draws_everything_where_memory_grows_with_it_and_little_where_it_does_not() -> None:
    portions = Portions(graph := GraphEngine(MODEL), 2)
    portions.rehearse(REQUESTS, HOW)
    assert portions.cache_bytes > 0 and graph.set_back_rows == 0
    counting = Counting(has_queue=False)
    Portions(counting, max_rows=2).rehearse(REQUESTS, HOW)
    assert counting.sizes == [2, 2, 1]


def test_only_an_engine_that_keeps_a_cache_reserves_one() -> None:
    portions = Portions(GraphEngine(MODEL), 2)
    portions.reserve(REQUESTS, HOW)
    assert portions.cache_bytes > 0
    counting = Counting(has_queue=False)
    Portions(counting, max_rows=2).reserve(REQUESTS, HOW)
    assert counting.sizes == []


def test_an_engine_that_fails_in_the_rehearsal_is_replaced_and_the_next_one_rehearses() -> None:
    class Broken(GraphEngine):
        def rehearse(self, requests: Sequence[Request], sampling: engine.Sampling) -> None:
            raise EngineUnavailable("its kernels do not compile")

    told, counting = list[str](), Counting(has_queue=True)
    portions = Portions(Fallback({"native": lambda: Broken(MODEL), "hf": lambda: counting}, told.append), 8)
    portions.rehearse(REQUESTS, HOW)
    assert portions.engine is counting and counting.sizes == [len(REQUESTS)]
    assert told == ["rollouts now come from the engine hf. Broken: its kernels do not compile"]


class Counting(NativeEngine):
    """Remembers how many requests came at once."""

    def __init__(self, has_queue: bool) -> None:
        super().__init__(MODEL)
        self.has_queue = has_queue
        self.sizes: list[int] = []

    def generate(self, requests: Sequence[Request], sampling: engine.Sampling) -> list[Rollout]:
        self.sizes.append(len(requests))
        return super().generate(requests, sampling)


@pytest.mark.parametrize(("has_queue", "sizes"), [(True, [5]), (False, [2, 2, 1])])
def test_only_an_engine_without_a_queue_is_asked_in_portions(has_queue: bool, sizes: list[int]) -> None:
    counting = Counting(has_queue)
    Portions(counting, max_rows=2).generate(REQUESTS, HOW)
    assert counting.sizes == sizes


def test_with_no_engine_left_every_reason_is_named() -> None:
    def missing() -> NativeEngine:
        raise EngineUnavailable("not installed")

    fallback = Fallback({"missing": missing, "tired": lambda: Tired(calls=0)}, lambda text: None)
    with pytest.raises(LonghaulError) as caught:
        Portions(fallback).generate(REQUESTS, HOW)
    assert "missing: not installed" in caught.value.what
    assert "Tired: it did not wake" in caught.value.what
    assert caught.value.exit_code is ExitCode.INTERNAL


def test_reductions_halve_the_rows_side_by_side() -> None:
    rows = [engine_of(MODEL, profile(max_rows=12), Tokenizer(POCKET), reductions=n).max_rows for n in (0, 1, 9)]
    assert rows == [12, 6, 1]


def test_the_defaults_of_vllm_agree_with_each_other() -> None:
    assert Vllm().max_num_batched_tokens >= Vllm().max_num_seqs


def test_rows_change_by_a_call_alone() -> None:
    counting = Counting(has_queue=False)
    portions = Portions(counting, max_rows=2)
    with pytest.raises(AttributeError):
        portions.max_rows = 3  # type: ignore[misc]
    portions.set_rows(3)
    portions.generate(REQUESTS, HOW)
    assert portions.max_rows == 3 and counting.sizes == [3, 2]


def test_a_native_engine_ends_at_the_stop_tokens_that_it_is_given() -> None:
    rollouts = NativeEngine(MODEL, stop_ids=range(MODEL.config.vocab_size)).generate(REQUESTS, HOW)
    assert [(len(one.completion_ids), one.finish_reason) for one in rollouts] == [(1, "stop")] * len(REQUESTS)
