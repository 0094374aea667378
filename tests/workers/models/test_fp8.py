"""Products in 8 bits: how far they are off, that a wrong scale is found, and that a run decides the same each time."""

from __future__ import annotations

import copy
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Model, Optimizer, Profile, Sampling
from tests.workers.families import model_of as family_of
from tests.workers.families import write
from tests.workers.interpreter import interpreted
from tests.workers.models.fp8_kernel_cases import all_of, linear_of
from tests.workers.models.test_adapters import pack_of
from tests.workers.models.test_families import profile_of
from workers.models import adapters, fast_graphs, fast_stack, fp8, fp8_check, quantized
from workers.models.adapters import linear_names
from workers.models.fast_graphs import Captured
from workers.models.log_probs import score
from workers.models.policy import open_policy

pytestmark = pytest.mark.usefixtures("one_thread")

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= fp8.OLDEST
CAPABILITIES = (89, 90, 100, 120)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PRODUCT = 1.1 * fp8_check.OF_PRODUCT
"""How far a product may be off: 3.7 % of its norm, with room for the spread over few numbers."""
TINY = ("qwen2-tiny", "qwen3-tiny", "llama-tiny", "gemma3-tiny")


def profile(init: str = "qwen2-tiny", **knobs: Any) -> Profile:
    return Profile(
        name="x",
        model=Model(random_init=init, dtype="bfloat16", gradient_checkpointing=True, fp8=True, **knobs),  # type: ignore[arg-type]
        adapter=Adapter(rank=4, alpha=8.0, targets=TARGETS),
        sampling=Sampling(max_prompt_tokens=32, max_completion_tokens=16),
        optimizer=Optimizer(row_tokens=96, micro_batch_size=4),
    )


def opened(wanted: Profile, device: str = "cpu") -> Any:
    return open_policy(wanted, None, torch.device(device)).model


def explained(model: Any) -> float:
    """What `BOUND` derives for the gradient."""
    return fp8_check.OF_PRODUCT * (2 * model.config.num_hidden_layers) ** 0.5


def far(found: Tensor, exact: Tensor) -> float:
    return float((found.double().cpu() - exact.cpu()).norm() / exact.norm().cpu())


@pytest.fixture(autouse=True)
def a_processor_with_such_products(request: pytest.FixtureRequest) -> None:
    """Tests of a class need another device. PyTorch before 2.12 takes one scale for a whole matrix on a CPU."""
    if request.cls is None and (problem := fp8.problem_on(torch.device("cpu"))):
        pytest.skip(problem)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For layers whose codes are not bitsandbytes' own."""
    monkeypatch.setattr(quantized, "weight_of", lambda base, dtype: base.dense.to(dtype))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("is_nf4", [False, True], ids=["bfloat16", "nf4"])
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 512), (1024, 64)])
def test_products_are_as_far_off_as_two_rounded_factors_make_them(outputs: int, inputs: int, is_nf4: bool) -> None:
    """Although outputs and inputs differ by a factor of ten thousand."""
    base, draws = linear_of(outputs, inputs, is_nf4=is_nf4), torch.Generator().manual_seed(1)
    x, grad = (torch.randn(96, width, generator=draws).bfloat16() for width in (inputs, outputs))
    exact = base.dense.double()
    assert far(fp8.outputs(x, [base])[0], x.double() @ exact.t()) < PRODUCT
    assert far(fp8.of_rows([grad], [base]), grad.double() @ exact) < PRODUCT
    assert far(fp8.of_rows([grad, grad], [base, base]), 2 * grad.double() @ exact) < PRODUCT


def test_a_weight_of_another_shape_stays_in_bfloat16() -> None:
    draws = torch.Generator().manual_seed(2)
    odd, even = torch.nn.Linear(32, 24, dtype=torch.bfloat16), torch.nn.Linear(32, 48, dtype=torch.bfloat16)
    x = torch.randn(8, 32, generator=draws).bfloat16()
    grads = [torch.randn(8, width, generator=draws).bfloat16() for width in (24, 48)]
    assert [fp8.fits(one) for one in (odd, even)] == [False, True]
    with torch.no_grad():
        first, second = fp8.outputs(x, [odd, even])
        assert torch.equal(first, odd(x)) and not torch.equal(second, even(x))
        exact = sum(grad.double() @ one.weight.double() for grad, one in zip(grads, (odd, even), strict=True))
        assert far(fp8.of_rows(grads, [odd, even]), exact) < PRODUCT  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(wrong: float) -> None:
    base = torch.nn.Linear(32, 16, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.ones(2, 32, dtype=torch.bfloat16)
    x[1, 3] = wrong
    found = fp8.outputs(x, [base])[0]
    assert found[0].isfinite().all() and not found[1].isfinite().any()


def test_rows_of_zeros_give_zeros() -> None:
    base = torch.nn.Linear(32, 16, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    assert not fp8.outputs(torch.zeros(3, 32, dtype=torch.bfloat16), [base])[0].any()


def test_asking_for_the_device_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    fp8.problem_on.cache_clear()
    assert fp8.problem_on(torch.device("cpu")) == ""
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("init", TINY)
def test_the_gradient_is_as_far_off_as_its_depth_explains(init: str, quantization: str) -> None:
    wanted = profile(init, quantization=quantization)
    model = opened(wanted)
    found = fp8_check.choose(model, wanted, 96)
    assert found.is_right and model.fast_runner.stack.in_fp8
    assert 0.5 < found.off / explained(model) < 1.5
    assert found.cosine > 1 - found.off**2


@pytest.mark.parametrize(("name", "is_right"), [("olmo2", True), ("phi3", True), ("glm4", False)])
def test_a_model_that_amplifies_roundings_too_much_is_not_accepted(name: str, is_right: bool, tmp_path: Path) -> None:
    """These weights are far larger than those of real models; each product is still 3.7 % off."""
    write(name, tmp_path)
    knobs = Model(path=str(tmp_path), dtype="bfloat16", gradient_checkpointing=True, fp8=True)
    adapter = Adapter(rank=4, targets=tuple(linear_names(family_of(name))))
    wanted = profile_of(tmp_path, model=knobs, adapter=adapter)
    found = fp8_check.compared(opened(wanted), wanted, 96)
    assert 0.2 < found.off < 0.7 and found.is_right == is_right


@pytest.mark.parametrize("is_wrong_transposed", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_wrong_scale_of_one_weight_is_found_and_the_run_goes_on_in_bfloat16(
    quantization: str, is_wrong_transposed: bool
) -> None:
    """Scales that are four times too large, of one matrix of each layer, in one of the two directions."""
    wanted = profile(quantization=quantization)
    model, right = opened(wanted), fp8.weight_of

    def wrong(base: Any, *, is_transposed: bool) -> fp8.Rounded:
        found = right(base, is_transposed=is_transposed)
        is_hit = base.in_features > base.out_features and is_transposed == is_wrong_transposed
        return fp8.Rounded(found.values, found.scales * 4) if is_hit else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "weight_of", wrong)
        found = fp8_check.choose(model, wanted, 96)
    assert not found.is_right and not model.fast_runner.stack.in_fp8, found
    assert found.metrics["fp8/used"] == 0.0 and found.text.endswith("updates are computed in bfloat16")


def test_the_check_leaves_everything_as_it_was_and_finds_the_same_whatever_was_trained() -> None:
    wanted = profile()
    model = opened(wanted)
    first = fp8_check.choose(model, wanted, 96)
    with torch.no_grad():
        for number, matrix in enumerate(adapters.adapter_of(model).values()):
            matrix.add_(0.01 * number)
    before = {name: one.clone() for name, one in adapters.adapter_of(model).items()}
    random, runner = torch.random.get_rng_state(), model.fast_runner
    assert fp8_check.choose(model, wanted, 96) == first
    after = adapters.adapter_of(model)
    assert all(torch.equal(after[name], one) and after[name].grad is None for name, one in before.items())
    assert torch.equal(random, torch.random.get_rng_state()) and model.fast_runner is runner


def test_what_is_scored_is_what_is_learnt_from_and_prompts_for_rollouts_stay_in_bfloat16() -> None:
    model = opened(profile())
    pack, stack = pack_of(model), model.fast_runner.stack
    ids = pack.ids[:1, :16]
    angles = {"": torch.stack(model.model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), torch.arange(16)[None]))}

    def passed() -> tuple[Tensor, Tensor, list[Tensor]]:
        with torch.no_grad():
            scored = score(model, pack, 0.7).log_probs
            kept: list[Tensor] = []
            fast_stack.read(model, ids, angles, lambda number, key, value: kept.extend((key.clone(), value.clone())))
        return scored, score(model, pack, 0.7).log_probs.detach(), kept

    plain, _, read = passed()
    stack.in_fp8 = True
    scored, learned, read_again = passed()
    assert torch.equal(scored, learned) and not torch.equal(scored, plain)
    assert all(torch.equal(*pair) for pair in zip(read, read_again, strict=True))


def test_padded_passes_compute_in_8_bits_too() -> None:
    model = opened(profile())
    plain = model.fast_runner
    plain.stack.in_fp8 = True
    with torch.no_grad():
        launched = score(model, pack_of(model), 0.7).log_probs
        model.fast_runner = Captured(plain, model, lambda work: work, lambda work: (False, work()))
        padded = score(model, pack_of(model), 0.7).log_probs
        plain.stack.in_fp8 = False
        exact = score(model, pack_of(model), 0.7).log_probs
    assert (padded - launched).abs().max() < (exact - launched).abs().max() / 4


def test_a_model_whose_layers_are_not_written_out_is_refused() -> None:
    model = opened(replace(profile(), model=replace(profile().model, gradient_checkpointing=False)))
    with pytest.raises(LonghaulError, match="needs written-out layers") as caught:
        fp8_check.require_layers(model)
    assert caught.value.exit_code == ExitCode.INPUT and "model.fp8=false" in caught.value.next_command


def test_a_device_without_such_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA RTX A5000")
    fp8.problem_on.cache_clear()
    with pytest.raises(LonghaulError, match=r"RTX A5000 has compute capability 8\.6, and .* need 8\.9") as caught:
        fp8_check.require_device(torch.device("cuda:7"))
    fp8.problem_on.cache_clear()
    assert caught.value.exit_code == ExitCode.GPU


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernels_do_what_pytorch_does() -> None:
    done = interpreted("-m", "tests.workers.models.fp8_kernel_cases", timeout=300)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets its kernels")
class TestCompiled:
    """For GPUs that need not be there."""

    @staticmethod
    def compiled(capability: int) -> list[Any]:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from workers.models import fp8_kernels

        found = []
        e4m3 = {"out": "*fp8e4nv", "scales": "*fp32"}
        for kernel, types, constants in (
            (fp8_kernels._round_rows, {"x": "*bf16", **e4m3, "largest": "fp32", "least": "fp32"}, {"BLOCK": 16384}),
            *(
                (
                    fp8_kernels._round_weight,
                    {"weight": "*u8" if is_nf4 else "*bf16", "blocks": "*fp32", "levels": "*fp32", **e4m3},
                    {"IS_NF4": is_nf4, "IS_TRANSPOSED": is_transposed, "ROWS": fp8_kernels.ROWS, "BLOCK": 64},
                )
                for is_nf4 in (False, True)
                for is_transposed in (False, True)
            ),
        ):
            names = kernel.arg_names
            signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
            source = ASTSource(kernel, signature, {(names.index(name),): one for name, one in constants.items()})
            target = GPUTarget("cuda", capability, 32)
            found.append(triton.compile(source, target=target, options={"num_warps": 8}))
        return found

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_the_kernels_compile_with_the_conversion_of_the_hardware(self, capability: int) -> None:
        """Ada has it from float16 only: a number on the edge is rounded twice."""
        kind = "f16x2" if capability == 89 else "f32"
        for code in self.compiled(capability):
            assert f"cvt.rn.satfinite.e4m3x2.{kind}" in code.asm["ptx"]
            assert code.metadata.shared <= 99 << 10

    def test_older_gpus_have_no_such_conversion(self) -> None:
        with pytest.raises(Exception, match="fp8e4nv"):
            self.compiled(86)


@pytest.mark.skipif(not HAS_FP8, reason="no GPU of compute capability 8.9")
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
class TestOnAGpu:
    def test_the_device_is_fit(self) -> None:
        assert fp8.problem_on(torch.device("cuda", 0)) == ""

    def test_the_kernels_round_as_pytorch_does(self) -> None:
        """A quotient on the edge between two numbers may fall to either side."""
        for name, found, expected in all_of("cuda", fp8.DTYPE):
            torch.testing.assert_close(found.float(), expected.float(), rtol=0.13, atol=2**-9, msg=name)
            assert (found.float() != expected.float()).float().mean() < 0.01, name

    @pytest.mark.parametrize("is_nf4", [False, True], ids=["bfloat16", "nf4"])
    @pytest.mark.parametrize("count", [1, 200, 4224])
    def test_products_are_as_far_off_as_two_rounded_factors_make_them(self, count: int, is_nf4: bool) -> None:
        base, draws = linear_of(1536, 8960, is_nf4=is_nf4, device="cuda"), torch.Generator().manual_seed(1)
        base.bias = torch.randn(1536, generator=draws).bfloat16().cuda()
        x, grad = (torch.randn(count, width, generator=draws).bfloat16().cuda() for width in (8960, 1536))
        exact = base.dense.double()
        assert far(fp8.outputs(x, [base])[0], x.double() @ exact.t() + base.bias.double()) < PRODUCT
        assert far(fp8.of_rows([grad], [base]), grad.double() @ exact) < PRODUCT

    @pytest.mark.parametrize("quantization", ["none", "nf4"])
    @pytest.mark.parametrize("init", TINY)
    def test_the_gradient_is_as_far_off_as_its_depth_explains(self, init: str, quantization: str) -> None:
        wanted = profile(init, quantization=quantization)
        model = opened(wanted, "cuda")
        assert 0.5 < fp8_check.choose(model, wanted, 96).off / explained(model) < 1.5

    @pytest.mark.parametrize("quantization", ["none", "nf4"])
    def test_graphs_give_the_bits_of_launches(self, quantization: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = opened(profile(quantization=quantization), "cuda")
        with torch.no_grad():
            for matrix in adapters.adapter_of(model).values():
                matrix.add_(0.05)
        fast_graphs.enable(model, with_graphs=True)
        runner = model.fast_runner
        runner.stack.in_fp8 = True
        monkeypatch.setattr(runner, "_measured", lambda work: (True, work()))
        pack = pack_of(model).to(model.device)

        def learned() -> list[Tensor]:
            model.zero_grad(set_to_none=True)
            found = score(model, pack, 0.7).log_probs
            found.sum().backward()  # type: ignore[no-untyped-call]
            gradients = [one.grad for one in adapters.adapter_of(model).values()]
            return [found.detach(), *copy.deepcopy([one for one in gradients if one is not None])]

        for _ in range(3):
            captured = learned()
        assert runner._graphs
        monkeypatch.setattr(runner, "may_capture", False)
        assert all(torch.equal(*pair) for pair in zip(captured, learned(), strict=True))
