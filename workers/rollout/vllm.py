"""Rollouts through vLLM in this same process, so that it dies with the worker and takes weights from GPU memory.

The trainer hands its weights over before the first rollout after an update (only the adapter if the base is frozen).
Between rollouts vLLM sleeps and holds no GPU memory. It uses its own seeding: the same request gives the same tokens in
the same batch, but perhaps not in another. Its numbers differ from the trainer's in the last bits, which
`optimizer.tis_cap` corrects. Not done: several GPUs, weights that vLLM itself quantises.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from profiles.schema import Vllm as Knobs
from profiles.shapes import shape_of
from workers.models.load import Tokenizer
from workers.rollout import vllm_limits
from workers.rollout.engine import EngineUnavailable, Request, Rollout, Sampling, stop_ids_of
from workers.rollout.stopping import StopTexts, rollout_of, stops_of
from workers.rollout.weight_transfer import AdapterFolder, adapter_rank, base_weights, has_adapter

log = logging.getLogger("worker")

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: no child that could outlive it
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
NO_COMPILE = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""CUDA graphs for decoding without torch.compile: starts in seconds instead of a minute, and decodes as fast."""
SLEEP_LEVEL = 2
"""Copy nothing to host memory: the update makes it stale anyway."""


@contextmanager
def unordered() -> Iterator[None]:
    """Allow nondeterministic operations inside: vLLM needs some that torch has in no deterministic form."""
    is_ordered, is_warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(is_ordered, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_ordered, warn_only=is_warned)


class VllmEngine:
    """A `RolloutEngine` over `vllm.LLM`. At most one per process: the memory that it puts to sleep is bound to it."""

    has_queue = True
    _was_started: ClassVar[bool] = False

    def __init__(self, model: Any, knobs: Knobs, *, max_tokens: int, tokenizer: Tokenizer | None = None) -> None:
        """max_tokens: longest prompt plus completion. tokenizer: needed for stop texts.

        Raises EngineUnavailable, with the reason, if vLLM cannot start here.
        """
        self.model, self.knobs = model, knobs
        self.decode = tokenizer.decode if tokenizer else None
        self.stop_ids = sorted(stop_ids_of(model))
        self.max_tokens = max_tokens
        if importlib.util.find_spec("vllm") is None:
            raise EngineUnavailable('vLLM is not installed: pip install "longhaul[vllm]"')
        if reason := vllm_limits.refusal(
            device_of(model), knobs, need_of(model, knobs, max_tokens), num_processes=num_processes()
        ):
            raise EngineUnavailable(f"vLLM cannot start: {reason}")
        if VllmEngine._was_started:
            raise EngineUnavailable("vLLM cannot start: a process can start it only once, and this one already has")
        self._adapter = AdapterFolder() if has_adapter(model) else None
        self._adapter_number = 0
        self._lora: Any = None
        self._is_stale = True
        self._is_asleep = False
        try:
            with tempfile.TemporaryDirectory(prefix="longhaul-vllm-") as directory:
                write_model_files(model, tokenizer, Path(directory))
                self._vllm, self._llm = self._start(directory, has_tokenizer=tokenizer is not None)
        except Exception:
            self._forget_adapter()
            raise

    def _start(self, directory: str, *, has_tokenizer: bool) -> tuple[Any, Any]:
        os.environ.update(ENVIRONMENT)
        VllmEngine._was_started = True
        try:
            import vllm
        except Exception as error:  # importing it runs much code of other libraries
            log.warning("importing vllm failed", exc_info=True)
            raise EngineUnavailable(f"vLLM cannot start: importing it failed: {first_line(error)}") from error
        lora = {}
        if self._adapter is not None:
            rank = vllm_limits.room_for(adapter_rank(self.model))
            lora = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
        try:
            with unchanged_globals(), unordered():
                return vllm, vllm.LLM(
                    directory,
                    load_format="dummy",  # the trainer's weights follow
                    skip_tokenizer_init=not has_tokenizer,
                    generation_config="vllm",  # the checkpoint's may change the policy: penalties, top-p
                    dtype=self.knobs.dtype,
                    max_model_len=self.max_tokens,
                    gpu_memory_utilization=self.knobs.gpu_memory_utilization,
                    max_num_seqs=self.knobs.max_num_seqs,
                    max_num_batched_tokens=self.knobs.max_num_batched_tokens,
                    enable_prefix_caching=self.knobs.enable_prefix_caching,
                    enforce_eager=self.knobs.enforce_eager,
                    enable_sleep_mode=self.knobs.sleep,
                    logprobs_mode="processed_logprobs",
                    compilation_config=None if self.knobs.enforce_eager else NO_COMPILE,
                    **lora,
                )
        except Exception as error:
            log.warning("starting vLLM failed", exc_info=True)
            reason = first_line(error)
        # Outside the handler: its traceback keeps the half-started engine alive.
        forget()
        raise EngineUnavailable(f"vLLM cannot start: {reason}")

    @unordered()
    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order. Raises EngineUnavailable if vLLM fails."""
        if not requests:
            return []
        self.wake()
        self.sync()
        stops = stops_of(sampling, self.decode, self.stop_ids)
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        params = [self._params(request, sampling, stops) for request in requests]
        try:
            outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._lora)
        except Exception as error:
            log.warning("vLLM failed", exc_info=True)
            raise EngineUnavailable(f"vLLM failed during a rollout: {first_line(error)}") from error
        return [
            self._rollout(request, output.outputs[0], stops, sampling.max_new_tokens)
            for request, output in zip(requests, outputs, strict=True)
        ]

    def _params(self, request: Request, sampling: Sampling, stops: StopTexts) -> Any:
        room = self.max_tokens - len(request.prompt_ids)
        if room < 1:
            raise EngineUnavailable(
                f"vLLM was started for {self.max_tokens} tokens, and a prompt has {len(request.prompt_ids)}: set "
                "sampling.max_prompt_tokens higher"
            )
        return self._vllm.SamplingParams(
            temperature=0.0 if sampling.greedy else sampling.temperature,
            seed=None if sampling.greedy else request.seed,
            max_tokens=min(sampling.max_new_tokens, room),
            logprobs=0,
            stop_token_ids=sorted(stops.stop_ids),
            ignore_eos=True,  # the stop tokens above are all of the model's
            stop=list(stops.texts) or None,
            include_stop_str_in_output=True,
            detokenize=bool(stops),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )

    def _rollout(self, request: Request, output: Any, stops: StopTexts, limit: int) -> Rollout:
        """Cut by our own rule for where a completion ends. vLLM may stop later, never earlier."""
        ids = list(output.token_ids)
        if not ids:
            raise EngineUnavailable(f"vLLM returned no token for a request ({output.finish_reason})")
        log_probs = [chosen[token].logprob for token, chosen in zip(ids, output.logprobs, strict=True)]
        rollout = rollout_of(request, ids, log_probs, stops, limit)
        if rollout.finish_reason == "length" and output.finish_reason == "stop":
            return replace(rollout, finish_reason="stop_text")
        return rollout

    def sync(self) -> None:
        """Hand over the trainer's weights if they may have changed. Raises EngineUnavailable if that fails."""
        if not self._is_stale:
            return
        try:
            if self._adapter is None or self._lora is None or self.knobs.sleep:
                self._llm.apply_model(lambda target: load(target, base_weights(self.model)))
            if self._adapter is not None:
                from vllm.lora.request import LoRARequest

                before, self._adapter_number = self._adapter_number, self._adapter_number + 1
                folder = self._adapter.write(self.model)
                self._lora = LoRARequest(f"step-{self._adapter_number}", self._adapter_number, str(folder))
                if before:
                    self._llm.llm_engine.remove_lora(before)
                self._llm.llm_engine.add_lora(self._lora)
            self._llm.reset_prefix_cache()
        except Exception as error:
            log.warning("handing weights to vLLM failed", exc_info=True)
            raise EngineUnavailable(f"vLLM did not accept the weights: {first_line(error)}") from error
        self._is_stale = False

    def rest(self) -> None:
        """Sleep: weights and cache leave the GPU."""
        self._is_stale = True
        if self.knobs.sleep and not self._is_asleep:
            self._llm.sleep(level=SLEEP_LEVEL)
            self._is_asleep = True

    def wake(self) -> None:
        """Raises EngineUnavailable if there is not enough memory, or vLLM fails to get it."""
        if not self._is_asleep:
            return
        gc.collect()
        torch.cuda.empty_cache()  # vLLM bypasses torch's allocator, which still holds what the update needed
        try:
            self._llm.wake_up()
        except Exception as error:
            log.warning("waking vLLM failed", exc_info=True)
            free = torch.cuda.mem_get_info()[0] / vllm_limits.GIB
            raise EngineUnavailable(
                f"vLLM did not wake: {first_line(error)} ({free:.1f} GiB are free beside the trainer; "
                f"vllm.gpu_memory_utilization = {self.knobs.gpu_memory_utilization:g})"
            ) from error
        self._is_asleep = False

    def close(self) -> None:
        with suppress(Exception):  # an engine that could not wake may not sleep either
            self.rest()  # frees its GPU memory even if something still refers to the engine
        with suppress(Exception):
            self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._lora = None
        self._forget_adapter()
        forget()

    def _forget_adapter(self) -> None:
        if self._adapter is not None:
            self._adapter.close()


def write_model_files(model: Any, tokenizer: Tokenizer | None, directory: Path) -> None:
    """The model directory that vLLM reads, without weights: those come from the trainer, unquantised."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(directory))
    if tokenizer is not None:
        (directory / "tokenizer.json").write_text(tokenizer.to_json())
        (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def load(target: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy weights by checkpoint name into vLLM's model, whose layers may be fused or wrapped for adapters."""
    known = {name for name, _ in target.named_parameters()}
    fused = {part: whole for whole, parts in getattr(target, "packed_modules_mapping", {}).items() for part in parts}
    target.load_weights((name_in(name, known, fused), tensor) for name, tensor in weights)


def name_in(name: str, known: set[str], fused: dict[str, str]) -> str:
    """The name under which a model with wrapped layers takes a weight: `base_layer` before its last part. (pure)"""
    module, _, last = name.rpartition(".")
    parent, _, leaf = module.rpartition(".")
    wrapped = f"{parent}.{fused.get(leaf, leaf)}.base_layer.{last}"
    return f"{module}.base_layer.{last}" if wrapped in known else name


def need_of(model: Any, knobs: Knobs, max_tokens: int) -> vllm_limits.Need:
    shape = shape_of(model.config.to_dict())
    count = sum(_numel(parameter) for name, parameter in model.named_parameters() if ".lora_" not in name)
    return vllm_limits.Need(
        weight_bytes=count * (4 if knobs.dtype == "float32" else 2),
        cache_bytes_per_token=vllm_limits.cache_bytes_per_token(shape.cache_width, knobs.dtype),
        sequence_tokens=max_tokens,
        adapter_rank=adapter_rank(model) if has_adapter(model) else 0,
    )


def _numel(parameter: Tensor) -> int:
    state = getattr(parameter, "quant_state", None)  # two 4-bit weights share a byte
    return parameter.numel() if state is None else int(state.shape.numel())


def device_of(model: Any) -> vllm_limits.Device | None:
    if not torch.cuda.is_available() or model.device.type != "cuda":
        return None
    index = model.device.index or 0
    free, total = torch.cuda.mem_get_info(index)
    cached = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
    return vllm_limits.Device(
        torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), total, free + cached
    )


def num_processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


@contextmanager
def unchanged_globals() -> Iterator[None]:
    """Restore what vLLM changes for the whole process. On start it seeds every generator, but those belong to the run
    and its checkpoints. If the start fails half-way, it also leaves its own default dtype behind.
    """
    python, arrays, host, devices, dtype = (
        random.getstate(),
        numpy.random.get_state(),
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all(),
        torch.get_default_dtype(),
    )
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.set_rng_state(host)
        torch.cuda.set_rng_state_all(devices)
        torch.set_default_dtype(dtype)


def forget() -> None:
    """Free what vLLM holds for the whole process, so that the next engine has the memory."""
    steps: list[Callable[[], Any]] = []
    with suppress(ImportError):
        from vllm.distributed import parallel_state

        steps = [parallel_state.destroy_model_parallel, parallel_state.destroy_distributed_environment]
    for step in steps:
        with suppress(Exception):  # half-started engines lack parts, and the rest must be freed all the same
            step()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    """An exception's message, in one line that fits a terminal. (pure)"""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
