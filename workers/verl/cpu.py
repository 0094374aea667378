"""verl without a GPU: a platform "cpu", which it lacks, and rollouts by plain transformers. To try the path.

Both enter through verl's registries. Ray counts a "GPU" for each process.
"""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from workers.verl.digests import Digests, Sent, held, refuse_mismatch
from workers.verl.probe import known_layout
from workers.verl.slices import Layout

NAME = "longhaul"
"""Of the rollout engine."""


class Server:
    """A rollout engine: one model, one request at a time. An actor of Ray."""

    def __init__(self, path: str, seed: int, limit: int) -> None:
        """path: of a Hugging Face model, whose weights are replaced by the first sync. limit: tokens of a rollout."""
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        read: Any = AutoModelForCausalLM.from_pretrained
        self.model = read(path, dtype=torch.float32).eval()
        self.layout = known_layout(self.model.config, ranks=1)
        self._generator = torch.Generator().manual_seed(seed)
        self._limit, self._step = limit, 0
        self._one = asyncio.Lock()

    async def load(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        self.model.load_state_dict(weights, strict=False)  # what is missing or unknown, `digests` tells
        self._step = self._step if step is None else step

    async def digests(self, vocabulary: int) -> Digests:
        assert self.layout is not None, "nobody asks where the probe compares"
        return held(self.model.named_parameters(), self.layout, vocabulary, rank=0)

    async def generate(self, request_id: Any, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        async with self._one:
            tokens, log_probs = self._draw(list(prompt_ids), sampling_params)
            facts: dict[str, Any] = {"global_steps": self._step}
            if sampling_params.get("prompt_logprobs") is not None:  # vLLM's form: the last number is padding
                facts["prompt_logprobs"] = [[one] for one in [*self.prompt_log_probs(list(prompt_ids)), 0.0]]
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed" if tokens[-1] == self.model.config.eos_token_id else "length",
            extra_fields=facts,
        )

    @torch.no_grad()
    def prompt_log_probs(self, tokens: list[int]) -> list[float]:
        """Of all tokens but the first, at temperature 1."""
        ids = torch.tensor([tokens])
        scores = torch.log_softmax(self.model(ids, use_cache=False).logits[0, :-1], -1)
        return [float(one) for one in scores.gather(1, ids[0, 1:, None])[:, 0]]

    @torch.no_grad()
    def _draw(self, prompt: list[int], wanted: dict[str, Any]) -> tuple[list[int], list[float]]:
        temperature = wanted.get("temperature", 1.0)
        limit = wanted.get("max_tokens") or wanted.get("max_new_tokens") or self._limit
        tokens: list[int] = []
        log_probs: list[float] = []
        cache, fed = None, torch.tensor([prompt])
        while len(tokens) < limit:
            out = self.model(fed, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            scores = torch.log_softmax(out.logits[0, -1] / (temperature or 1.0), -1)
            drawn = torch.multinomial(scores.exp(), 1, generator=self._generator) if temperature else scores.argmax()
            tokens.append(int(drawn))
            log_probs.append(float(scores[tokens[-1]]))
            if tokens[-1] == self.model.config.eos_token_id:
                break
            fed = torch.tensor([tokens[-1:]])
        return tokens, log_probs

    async def nothing(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"aborted_count": 0, "request_ids": []}

    ready = sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    abort_all_requests = resume_generation = wait_for_requests_to_drain = start_profile = stop_profile = nothing


class Sender:
    """Hands weights to one engine, and lets nobody draw with others. layout: None where `probe.py` compares."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout

    async def send(self, weights: Any, step: int | None, engine: Any, name: str) -> None:
        """weights: names and whole tensors. engine: an object with the awaitable calls `load` and `digests`; None: read
        only, as all ranks must. Raises SyncMismatch."""
        sent = Sent(self._layout, torch.float32) if self._layout else None
        watched = sent.watch(weights) if sent else weights
        whole = {key: tensor.detach().float().cpu().clone() for key, tensor in watched}
        if engine is None:
            return
        await engine.load(whole, step)
        if sent is None or self._layout is None:
            return
        refuse_mismatch(sent.by_rank, [await engine.digests(sent.vocabulary)], self._layout, name)


class _Remote:
    """An actor of Ray, called like the object itself."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name).remote


def register() -> None:
    _register_platform()
    _register_rollout()


def _register_rollout() -> None:
    import ray
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

    class Replica(RolloutReplica):  # type: ignore[misc]
        async def launch_servers(self) -> None:
            name = _actor_of(self.replica_rank)
            make = ray.remote(Server).options(name=name, max_concurrency=64, num_cpus=0)
            server = make.remote(
                self.model_config.path, self.config.seed + self.replica_rank, self.config.response_length
            )
            await server.ready.remote()
            self.servers, self._server_handle, self._server_address = [server], server, name

    class Adapter(base.BaseRollout):  # type: ignore[misc]
        """Lives in each process that trains."""

        def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
            super().__init__(config, model_config, device_mesh)
            self._replica = int(os.environ["RANK"])
            self._sender = Sender(known_layout(self.model_config.hf_config, ranks=1))

        async def resume(self, tags: list[str]) -> None:
            """Nothing was released."""

        async def release(self) -> None:
            """Nothing is released."""

        async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
            name = _actor_of(self._replica)
            await self._sender.send(weights, global_steps, _Remote(ray.get_actor(name)), name)

    globals()["Adapter"] = Adapter  # verl finds it by its name
    RolloutReplicaRegistry.register(NAME, lambda: Replica)
    base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.Adapter"


def _actor_of(replica: int) -> str:
    return f"{NAME}_server_{replica}_0"


def _register_platform() -> None:
    """verl asks its platform for everything that torch.cuda would answer."""
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import set_platform

    def nothing(*_: Any, **__: Any) -> None:
        return None

    answers = {
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "get_device_name": lambda *_: "CPU",
        "mem_get_info": lambda *_: (1 << 30, 1 << 31),
    }

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in answers:
                return answers[name]
            if "memory_" in name:
                return lambda *_, **__: 0
            return getattr(torch.cpu, name, nothing)

    module = Module("longhaul_cpu")

    class Cpu(PlatformBase):  # type: ignore[misc]
        device_name = property(lambda self: "cpu")
        vendor_name = property(lambda self: "cpu")
        device_module = property(lambda self: module)
        is_available = is_platform_available = lambda self, *_, **__: True
        current_device = lambda self: "cpu"  # noqa: E731
        device_count = lambda self: 1  # noqa: E731
        set_device = synchronize = set_allocator_settings = empty_cache = nothing
        profiler_start = profiler_stop = cudart = get_collective_module = nothing
        manual_seed = manual_seed_all = lambda self, seed: torch.manual_seed(seed)
        get_device_capability = lambda self, *_: (None, None)  # noqa: E731
        communication_backend_name = lambda self: "gloo"  # noqa: E731
        visible_devices_envvar = lambda self: "CUDA_VISIBLE_DEVICES"  # noqa: E731
        ray_resource_name = lambda self: "GPU"  # noqa: E731
        ray_resource_options = lambda self, count: {"num_gpus": count}  # noqa: E731
        ray_noset_envvars = lambda self: ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]  # noqa: E731
        is_ipc_supported = lambda self: False  # noqa: E731

        def rollout_env_vars(self) -> dict[str, str]:
            return {}

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

    set_platform(Cpu())
    from verl.utils import distributed

    # It would name the backends "cpu:gloo,cpu:gloo", which torch refuses.
    initialize = distributed.initialize_global_process_group_ray
    distributed.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: initialize(
        timeout_second, "cpu:gloo"
    )
