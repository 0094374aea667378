"""All layers as one node, in padded rows, and as graphs: the numbers of the layers one by one."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.footprint import GIB, Work, training
from profiles.schema import Adapter, Model, Optimizer, Profile
from profiles.shapes import ARCHITECTURES, shape_of
from tests.workers.models.test_adapters import pack_of
from tests.workers.models.test_fast_layers import ATTENTION, MLP, OWN, model_of
from workers.memory.phases import CudaGauge
from workers.models import adapters, fast_graphs, optimizer
from workers.models.fast_graphs import Captured
from workers.models.fast_layers import Given, LeanLayer
from workers.models.fast_stack import ALIGNED, Plain, Stack
from workers.models.log_probs import score
from workers.models.lora import LoraLinear
from workers.models.master import MasterWeights

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = replace(OWN, targets=ATTENTION + MLP)


class Recorder:
    """Keeps a function and calls it: what a CUDA graph does, without one. Addresses are those of the first time."""

    def __init__(self) -> None:
        self.made = self.replayed = 0

    def __call__(self, work: Callable[[], Any]) -> Callable[[], None]:
        self.made += 1

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                work()

        return replay


def test_a_graph_is_captured_on_a_stream_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's default one is that of whichever device captured first; another device's graph would hold nothing."""
    streams: list[Any] = []

    def graph(*_: object, stream: Any, **__: object) -> AbstractContextManager[None]:
        streams.append(stream)
        return nullcontext()

    fast_graphs.capture_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: (device, object()))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    devices = [torch.device("cuda", index) for index in (1, 0, 1)]
    for device in devices:
        fast_graphs.Recorder(device)(lambda: None)
    fast_graphs.capture_stream.cache_clear()
    assert [device for device, _ in streams] == devices and streams[0] is streams[2]


def captured(model: Any, *, is_waiting: bool = True, most_tokens: int = sys.maxsize) -> tuple[Captured, Recorder]:
    record = Recorder()
    runner = Captured(Plain(model.fast_runner.stack), model, record, lambda work: (is_waiting, work()), most_tokens)
    model.fast_runner = runner
    return runner, record


def learned(model: Any, count: int = 6) -> dict[str, Tensor]:
    """Log-probabilities, and the gradients of the adapter's matrices."""
    model.zero_grad(set_to_none=True)
    found = score(model, pack_of(model, count).to(model.device), 0.7).log_probs
    found.sum().backward()
    gradients = {name: one.grad.clone() for name, one in adapters.adapter_of(model).items()}  # type: ignore[union-attr]
    return gradients | {"log_probs": found.detach()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float((found[name] - value).norm()) <= tolerance * float(value.norm()), name


def double(adapter: Any = ALL, *, recomputed: bool = True) -> Any:
    return model_of(adapter, recomputed=recomputed).double()


def test_one_node_gives_what_the_modules_give() -> None:
    model = double()
    assert isinstance(model.fast_runner, Plain)
    assert_same(learned(model), learned(double(recomputed=False)))


class Made(TorchDispatchMode):
    """What operations make, as long as somebody has it."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._found += [weakref.ref(one) for one in tree_leaves(found) if isinstance(one, Tensor)]
        return found

    @property
    def alive(self) -> set[int]:
        """Their memory."""
        gc.collect()
        return {one.untyped_storage().data_ptr() for found in self._found if (one := found()) is not None}


def test_nothing_but_the_layers_inputs_stays_for_the_gradient() -> None:
    model = double()
    learned(model)  # the adapter's copies are made
    pack = pack_of(model)
    hidden = model.model.embed_tokens(pack.ids)
    given = Given(pack.segments, {"": torch.stack(model.model.rotary_emb(hidden, pack.positions))})
    with torch.no_grad(), Made() as made:
        learnt, out = model.fast_runner.learn(given, hidden)
    layers = len(model.model.layers)
    assert layers > 1 and len(made.alive) == layers  # the first layer's input was there, the last one's is the result
    learnt(torch.ones_like(out))
    del out
    assert not made.alive


class Runs:
    """How often each layer of a model has run."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0] * len(model.model.layers)
        run = LeanLayer.run

        def counted(layer: Any, *args: Any, **kwargs: Any) -> Tensor:
            self.counts[list(model.model.layers).index(layer.layer)] += 1
            return run(layer, *args, **kwargs)

        monkeypatch.setattr(LeanLayer, "run", counted)


def test_layers_that_fit_the_memory_for_them_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones of a pass, whose activations go first."""
    model, expected = double(), learned(double(recomputed=False))
    layers, tokens = len(model.model.layers), pack_of(model).ids.numel()
    runs = Runs(model, monkeypatch)
    for kept in range(layers + 1):
        model.fast_runner = Plain(Stack(model.fast_runner.stack._layers, kept * tokens + tokens - 1))
        runs.counts[:] = [0] * layers
        assert_same(learned(model), expected)
        assert runs.counts == [2] * (layers - kept) + [1] * kept


def test_a_profile_says_how_much_memory_kept_layers_get() -> None:
    shape = shape_of(ARCHITECTURES["qwen2-tiny"])
    tokens = model_of(ALL, recomputed=True, keep_gib=0.5).fast_runner.stack._kept_tokens
    knobs = Profile(name="x", model=Model(keep_gib=0.5, gradient_checkpointing=True), adapter=ALL)
    each = training(knobs, shape, Work(1, 1, 1, 1, tokens=1, width=1, places=1, head_rows=1))["kept layers"]
    assert 0.5 * GIB - each < tokens * each / shape.num_hidden_layers <= 0.5 * GIB


def test_graphs_keep_the_layers_that_launched_passes_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    model, expected = double(), learned(double(recomputed=False))
    model.fast_runner = Plain(Stack(model.fast_runner.stack._layers, fast_graphs.ROUND))
    _, record = captured(model)
    runs = Runs(model, monkeypatch)
    for _ in range(4):
        runs.counts[:] = [0] * len(runs.counts)
        assert_same(learned(model), expected)
        assert runs.counts[-1] == 1 and set(runs.counts[:-1]) == {2}
    assert record.replayed == 4


def test_from_the_third_pass_of_a_shape_on_graphs_give_it_too() -> None:
    model, expected = double(), learned(double(recomputed=False))
    _, record = captured(model)
    for made, replayed in ((0, 0), (0, 0), (2, 2), (2, 4)):
        assert_same(learned(model), expected)
        assert (record.made, record.replayed) == (made, replayed)


def test_where_the_gpu_is_what_takes_time_there_are_no_graphs() -> None:
    model, expected = double(), learned(double(recomputed=False))
    _, record = captured(model, is_waiting=False)
    for _ in range(4):
        assert_same(learned(model), expected)
    assert record.made == 0


def test_a_pass_whose_graphs_would_take_more_memory_than_there_is_for_them_has_none() -> None:
    model, expected = double(), learned(double(recomputed=False))
    tokens = fast_graphs.ROUND * len(pack_of(model).ids)
    for most, made in ((tokens - 1, 0), (tokens, 2)):
        _, record = captured(model, most_tokens=most)
        for _ in range(4):
            assert_same(learned(model), expected)
        assert record.made == made


def test_a_shape_with_fewer_tokens_than_one_that_has_graphs_gets_them_at_its_second_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_graphs, "ROUND", 4)
    model, plain = double(), double(recomputed=False)
    _, record = captured(model)
    for count, made in ((6, 0), (6, 0), (4, 0), (4, 2), (8, 2), (8, 2), (8, 4)):
        assert_same(learned(model, count), learned(plain, count))
        assert record.made == made


def test_what_is_scored_by_graphs_is_what_is_learnt_from() -> None:
    model = double()
    _, record = captured(model)
    for _ in range(3):
        found = learned(model)["log_probs"]
        with torch.no_grad():
            assert torch.equal(score(model, pack_of(model), 0.7).log_probs, found)
    assert record.replayed == 4


def test_graphs_see_every_change_of_the_adapter() -> None:
    """In bfloat16, where products read rounded copies of the matrices."""
    model = model_of(ALL, recomputed=True, dtype="bfloat16")
    stepper = torch.optim.AdamW(adapters.adapter_of(model).values(), lr=1e-2)
    runner, record = captured(model)
    scores = []
    for _ in range(5):
        learned(model)
        stepper.step()
        with torch.no_grad():
            scores.append(score(model, pack_of(model), 0.7).log_probs)
            captured(model, is_waiting=False)
            assert torch.equal(scores[-1], score(model, pack_of(model), 0.7).log_probs)
        model.fast_runner = runner
    assert record.replayed == 10  # three updates of five, and four scores
    assert not any(torch.equal(one, other) for one, other in pairwise(scores))


def test_gradients_of_several_passes_add_up() -> None:
    model, expected = double(), learned(double(recomputed=False))
    captured(model)
    for _ in range(3):
        learned(model)
    for _ in range(2):
        score(model, pack_of(model), 0.7).log_probs.sum().backward()
    for name, one in adapters.adapter_of(model).items():
        torch.testing.assert_close(one.grad, 3 * expected[name], rtol=1e-6, atol=1e-6)


def test_gradients_add_up_in_one_buffer() -> None:
    """A launch for each matrix would take longer than the sum."""
    model = double()
    learned(model)
    sums, gradients = model.fast_runner.stack.sums(), [one.grad for one in adapters.adapter_of(model).values()]
    (kept,) = {one.untyped_storage().data_ptr() for one in gradients}  # type: ignore[union-attr]
    assert kept == sums.flat.data_ptr()
    assert all(one.storage_offset() % ALIGNED == 0 for one in gradients)  # type: ignore[union-attr]


@pytest.mark.parametrize("is_captured", [False, True], ids=["launched", "captured"])
def test_a_pass_adds_to_gradients_that_something_else_has_made(is_captured: bool) -> None:
    model, expected = double(), learned(double(recomputed=False))
    if is_captured:
        captured(model)
    for _ in range(3):
        learned(model)
    names = adapters.adapter_of(model)
    for number, one in enumerate(names.values()):
        one.grad = None if number % 2 else torch.ones_like(one)
    score(model, pack_of(model), 0.7).log_probs.sum().backward()
    for number, (name, one) in enumerate(names.items()):
        torch.testing.assert_close(one.grad, expected[name] + 1 - number % 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_captured", [False, True], ids=["launched", "captured"])
def test_hooks_get_the_gradient_of_each_pass(is_captured: bool) -> None:
    """By them an optimiser in host memory takes it."""
    model, expected = double(), learned(double(recomputed=False))
    if is_captured:
        captured(model)
    taken: dict[str, list[Tensor]] = {}
    for name, one in adapters.adapter_of(model).items():

        def take(parameter: Tensor, name: str = name) -> None:
            assert parameter.grad is not None
            taken.setdefault(name, []).append(parameter.grad)
            parameter.grad = None

        one.register_post_accumulate_grad_hook(take)
    for _ in range(4):
        score(model, pack_of(model), 0.7).log_probs.sum().backward()
    for name, each in taken.items():
        assert len(each) == 4
        for one in each:
            torch.testing.assert_close(one, expected[name], rtol=1e-6, atol=1e-6)


def test_passes_of_other_shapes_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_graphs, "ROUND", 4)
    model, plain = double(), double(recomputed=False)
    _, record = captured(model)
    for count in (4, 4, 4, 6, 6, 6, 4):
        assert_same(learned(model, count), learned(plain, count))
    assert record.made == 4 and record.replayed == 6


def test_graphs_give_way_to_others_only_once_they_have_long_been_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_graphs, "MOST_GRAPHS", 1)
    monkeypatch.setattr(fast_graphs, "UNUSED", 5)
    monkeypatch.setattr(fast_graphs, "ROUND", 4)
    model, plain = double(), double(recomputed=False)
    _, record = captured(model)
    for counts, made in (((4, 4, 4), 2), ((6, 4) * 6, 2), ((6,) * 5, 4), ((6, 4) * 4, 4)):
        for count in counts:
            assert_same(learned(model, count), learned(plain, count))
        assert record.made == made


def test_graphs_that_are_forgotten_are_made_again_when_their_shape_has_been_seen_again() -> None:
    model, expected = double(), learned(double(recomputed=False))
    runner, record = captured(model)
    for made in (0, 0, 2, 2):
        learned(model)
        assert record.made == made
    fast_graphs.allow(model, with_graphs=True)
    assert not runner._graphs
    for made in (2, 2, 4):
        assert_same(learned(model), expected)
        assert record.made == made


def test_where_memory_has_ended_graphs_are_given_back_for_good() -> None:
    model, expected = double(), learned(double(recomputed=False))
    runner, record = captured(model)
    for _ in range(3):
        learned(model)
    assert fast_graphs.may_capture(model)
    assert fast_graphs.held_bytes(model) > 0
    fast_graphs.allow(model, with_graphs=False)
    assert fast_graphs.held_bytes(model) == 0
    assert not runner._graphs and not fast_graphs.may_capture(model)
    for _ in range(4):
        assert_same(learned(model), expected)
    assert record.made == 2


def test_while_a_pass_waits_for_its_gradient_others_leave_alone_what_it_keeps() -> None:
    model, expected = double(), learned(double(recomputed=False))
    _, record = captured(model)
    for _ in range(3):
        learned(model)
    model.zero_grad(set_to_none=True)
    waiting = score(model, pack_of(model), 0.7).log_probs.sum()
    with torch.no_grad():
        score(model, pack_of(model), 0.7)
    score(model, pack_of(model), 0.7)  # dropped
    waiting.backward()
    for name, one in adapters.adapter_of(model).items():
        torch.testing.assert_close(one.grad, expected[name], rtol=1e-6, atol=1e-6)
    assert record.replayed == 4
    learned(model)
    assert record.replayed == 6


def test_other_weights_get_other_graphs() -> None:
    model = double()
    _, record = captured(model)
    for _ in range(3):
        learned(model)
    for matrix in adapters.adapter_of(model).values():
        matrix.data = 2 * matrix.data
    plain = double(recomputed=False)
    for matrix in adapters.adapter_of(plain).values():
        matrix.data *= 2
    assert_same(learned(model), learned(plain))
    assert record.made == 4


def test_without_its_adapter_the_model_is_the_base() -> None:
    model, plain = double(), double(recomputed=False)
    captured(model)
    for _ in range(3):
        learned(model)
    found = []
    for one in (model, plain):
        with torch.no_grad(), adapters.disabled(one):
            found.append(score(one, pack_of(one), 1.0).log_probs)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stage", [1, 2], ids=["forward", "backward"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), RuntimeError("operation not permitted\nmore")])
def test_where_a_graph_cannot_be_made_kernels_are_launched(
    error: Exception, stage: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In bfloat16, where the adapter's matrices are rounded: what was made during a capture was never written. What is
    launched then is as near to double precision as what the modules give."""
    model = model_of(ALL, recomputed=True, dtype="bfloat16")
    modules = [module for module in model.modules() if isinstance(module, LoraLinear)]
    exact = learned(model_of(ALL, recomputed=False, dtype="bfloat16").double())
    rounded, made = learned(model_of(ALL, recomputed=False, dtype="bfloat16")), []

    def fail(work: Any) -> Any:
        work()
        for copied in (copied for module in modules for copied in module.cast(torch.bfloat16)):
            copied.fill_(torch.nan)
        made.append(work)
        if len(made) == stage:
            raise error
        return work

    model.fast_runner = Captured(Plain(model.fast_runner.stack), model, fail, lambda work: (True, work()))
    for _ in range(4):
        found = learned(model)
        assert all(torch.isfinite(value).all() for value in found.values())
        for name, value in exact.items():
            assert float((found[name] - value).norm()) <= 2 * float((rounded[name] - value).norm()), name
    assert str(error).splitlines()[0] in caplog.text and len(made) == stage


# --- all weights -----------------------------------------------------------------------------------------------------

WHOLE = Adapter()


def whole(*, recomputed: bool = True) -> Any:
    """A model in float64 that is trained whole; its norms and biases say something."""
    model = model_of(WHOLE, recomputed=recomputed).double()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim == 1:
                one.add_(0.3 * torch.randn(one.shape, generator=random))
    return model


def learned_by(model: Any, *counts: int) -> dict[str, Tensor]:
    """Log-probabilities of the last pass, and gradients of all weights, summed over passes of so many completions."""
    model.zero_grad(set_to_none=True)
    for count in counts:
        found = score(model, pack_of(model, count).to(model.device), 0.7).log_probs
        found.sum().backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    return gradients | {"log_probs": found.detach()}


def test_all_weights_get_the_gradients_that_the_modules_give_them() -> None:
    """The embedding, which is tied to the head, and the last norm among them."""
    model, plain = whole(), whole(recomputed=False)
    assert model.fast_runner.stack.learns_all and not hasattr(plain, "fast_runner")
    expected = learned_by(plain, 6)
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.bias"} < expected.keys()
    assert_same(learned_by(model, 6), expected)
    assert_same(learned_by(model, 6, 4, 6), learned_by(plain, 6, 4, 6))


def test_what_is_scored_with_all_weights_is_what_is_learnt_from() -> None:
    model = model_of(WHOLE, recomputed=True, dtype="bfloat16")
    with torch.no_grad():
        scored = score(model, pack_of(model), 0.7).log_probs
    assert torch.equal(scored, learned_by(model, 6)["log_probs"])


def test_all_weights_learn_alike_from_layers_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(WHOLE, recomputed=True)
    layers, tokens = len(model.model.layers), pack_of(model).ids.numel()
    runs, found = Runs(model, monkeypatch), list[dict[str, Tensor]]()
    for kept in range(layers + 1):
        model.fast_runner = Plain(Stack(model.fast_runner.stack._layers, kept * tokens))
        runs.counts[:] = [0] * layers
        found.append(learned_by(model, 6))
        assert runs.counts == [2] * (layers - kept) + [1] * kept
    assert all(torch.equal(one[name], other[name]) for one, other in pairwise(found) for name in one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_over_all_weights_give_what_launches_gave(dtype: str) -> None:
    """To the bit, and through the optimiser of that dtype, whose updates they see. A graph for each layer's backward
    pass; shapes share what these leave."""
    weights = []
    for is_waiting in (True, False):
        model = model_of(WHOLE, recomputed=True, dtype=dtype)
        stepper = optimizer.build(model, Optimizer(learning_rate=1e-3, warmup_steps=0))
        _, record = captured(model, is_waiting=is_waiting)
        for _ in range(4):
            for count in (6, 4, 6):
                score(model, pack_of(model, count), 0.7).log_probs.sum().backward()
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        layers = len(model.model.layers)
        assert record.made == is_waiting * (1 + layers)
        assert record.replayed == is_waiting * 10 * (1 + layers)
        weights.append([one.detach().clone() for one in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


def test_rows_of_several_shapes_share_what_graphs_of_layers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_graphs, "ROUND", 4)
    model, plain = whole(), whole(recomputed=False)
    runner, record = captured(model)
    for counts in ((4, 4, 4), (6, 6, 6), (4, 6)):
        assert_same(learned_by(model, *counts), learned_by(plain, *counts))
    assert record.made == 2 * (1 + len(model.model.layers))
    (staged,) = runner._staged.values()
    assert [one.shape for one in staged] == [one.shape for one in model.model.layers[0].parameters()]
    held = fast_graphs.held_bytes(model)
    fast_graphs.allow(model, with_graphs=True)
    assert held > sum(one.nbytes for one in staged) and fast_graphs.held_bytes(model) == 0


def test_a_pass_whose_graphs_are_given_back_before_its_gradient_comes_still_has_it() -> None:
    model, expected = whole(), learned_by(whole(recomputed=False), 6)
    captured(model)
    for _ in range(3):
        learned_by(model, 6)
    model.zero_grad(set_to_none=True)
    waiting = score(model, pack_of(model), 0.7).log_probs.sum()
    fast_graphs.allow(model, with_graphs=False)
    waiting.backward()
    del expected["log_probs"]
    assert_same({name: one.grad for name, one in model.named_parameters()}, expected)


@pytest.mark.parametrize("is_captured", [False, True], ids=["launched", "captured"])
def test_of_all_gradients_in_16_bits_there_are_never_more_than_a_layers(is_captured: bool) -> None:
    """Beside the float32 sums, which an update frees. The embedding's is of its own size."""
    model = model_of(WHOLE, recomputed=True, dtype="bfloat16")
    stepper = optimizer.build(model, Optimizer(warmup_steps=0))
    assert isinstance(stepper, MasterWeights)
    if is_captured:
        captured(model)
    for _ in range(3):
        score(model, pack_of(model), 0.7).log_probs.sum().backward()
    most, take = list[int](), MasterWeights._take
    sizes = {tuple(one.shape) for one in model.model.layers[0].mlp.parameters()}

    def counting(name: str, parameter: nn.Parameter) -> None:
        gc.collect()
        tensors = [one for one in gc.get_objects() if type(one) is Tensor and tuple(one.shape) in sizes]
        most.append(sum(one.dtype == torch.bfloat16 and not one.requires_grad for one in tensors))
        take(stepper, name, parameter)

    for name, one in model.named_parameters():
        if name.endswith("down_proj.weight"):  # once in each layer: all objects of the process are counted
            one._post_accumulate_grad_hooks.clear()
            one.register_post_accumulate_grad_hook(partial(counting, name))
    score(model, pack_of(model), 0.7).log_probs.sum().backward()
    # What a graph leaves, and the copies of it.
    assert 0 < max(most) <= (2 if is_captured else 1) * len(list(model.model.layers[0].mlp.parameters()))
    assert all(one.grad is None for one in model.parameters())
    stepper.step()
    assert not stepper.gradients


@pytest.mark.parametrize("is_captured", [False, True], ids=["launched", "captured"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hook_may_keep_the_gradients_of_all_weights(dtype: str, is_captured: bool) -> None:
    model = model_of(WHOLE, recomputed=True, dtype=dtype)
    if is_captured:
        captured(model)
    expected = [learned_by(model, count) for count in (6, 6, 6, 6)]
    taken: dict[str, list[Tensor]] = {}
    for name, one in model.named_parameters():

        def take(parameter: Tensor, name: str = name) -> None:
            assert parameter.grad is not None
            taken.setdefault(name, []).append(parameter.grad)
            parameter.grad = None

        one.register_post_accumulate_grad_hook(take)
    model.zero_grad(set_to_none=True)
    for _ in range(2):
        score(model, pack_of(model), 0.7).log_probs.sum().backward()
    assert taken.keys() == dict(model.named_parameters()).keys()
    for name, each in taken.items():
        assert len(each) == 2 and all(torch.equal(one, expected[-1][name]) for one in each)


def test_in_16_bits_gradients_of_all_weights_are_nearer_to_float32_than_those_of_modules() -> None:
    fast, plain = (model_of(WHOLE, recomputed=each, dtype="bfloat16") for each in (True, False))
    exact = learned_by(copy.deepcopy(plain).float(), 6)
    off = [
        float(sum((one[name].double() - exact[name]).square().sum() for name in exact))
        for one in (learned_by(fast, 6), learned_by(plain, 6))
    ]
    assert off[0] < off[1]


def test_where_a_layers_graph_cannot_be_made_kernels_are_launched(caplog: pytest.LogCaptureFixture) -> None:
    model, expected = whole(), learned_by(whole(recomputed=False), 6)
    made = list[object]()

    def fail(work: Any) -> Any:
        made.append(work)
        work()
        if len(made) == 3:
            raise torch.OutOfMemoryError("no")
        return work

    model.fast_runner = Captured(Plain(model.fast_runner.stack), model, fail, lambda work: (True, work()))
    for _ in range(4):
        assert_same(learned_by(model, 6), expected)
    assert len(made) == 3 and "run without graphs: no" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("layers", [0, 1, 100], ids=lambda layers: f"{layers} kept at most")
def test_on_a_gpu_replays_over_all_weights_give_what_launches_gave(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, over updates of the float32 copies; and nothing stays from one to the next."""
    model = model_of(WHOLE, recomputed=True, device="cuda", dtype="bfloat16")
    runner = model.fast_runner
    assert isinstance(runner, Captured)
    runner.stack._kept_tokens = layers * fast_graphs.ROUND * len(pack_of(model).ids)
    monkeypatch.setattr(runner, "_measured", lambda work: (True, work()))
    stepper, now = optimizer.build(model, Optimizer(learning_rate=1e-3, warmup_steps=0)), list[int]()
    assert isinstance(stepper, MasterWeights)

    def gradients() -> dict[str, Tensor]:
        stepper.zero_grad()
        for _ in range(2):
            score(model, pack_of(model).to(torch.device("cuda")), 0.7).log_probs.sum().backward()
        return {name: stepper.gradient(name).clone() for name in stepper.masters}

    for step in range(6):
        found = gradients()
        assert bool(runner._graphs) is (step >= 1)
        monkeypatch.setattr(runner, "may_capture", False)
        launched = gradients()
        monkeypatch.setattr(runner, "may_capture", True)
        assert all(torch.equal(value, launched[name]) for name, value in found.items())
        model.fast_runner = runner.plain
        assert_same(found, gradients(), 0.02)
        model.fast_runner = runner
        stepper.step()
        del found, launched
        now.append(CudaGauge(lambda: fast_graphs.held_bytes(model)).read().allocated)
    assert now[-1] - now[2] < 2**20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("layers", [0, 1, 100], ids=lambda layers: f"{layers} kept at most")
def test_on_a_gpu_replays_give_what_launches_gave(
    layers: int, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, as a run that is resumed launches what the unbroken one replays; and unpadded rows nearly that."""
    model = model_of(ALL, recomputed=True, quantization=quantization, device="cuda", dtype="bfloat16")
    runner = model.fast_runner
    assert isinstance(runner, Captured)
    runner.stack._kept_tokens = layers * fast_graphs.ROUND * len(pack_of(model).ids)
    monkeypatch.setattr(runner, "_measured", lambda work: (True, work()))
    stepper, now = torch.optim.AdamW(adapters.adapter_of(model).values(), lr=1e-3), list[int]()
    for step in range(6):
        found = learned(model)
        assert bool(runner._graphs) is (step >= 1)
        monkeypatch.setattr(runner, "may_capture", False)
        launched = learned(model)
        monkeypatch.setattr(runner, "may_capture", True)
        assert all(torch.equal(value, launched[name]) for name, value in found.items())
        model.fast_runner = runner.plain
        assert_same(found, learned(model), 0.02)
        model.fast_runner = runner
        now.append(CudaGauge(lambda: fast_graphs.held_bytes(model)).read().allocated)
        stepper.step()
    assert now[-1] - now[2] < 2**20  # nothing but the graphs' buffers stays
