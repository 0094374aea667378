"""vLLM under verl, with weights that are compared after each sync, on each of its ranks, before a rollout is drawn.

verl's own server and adapter do the work; ours take down what is sent, and let the engine's workers compare it through
vLLM's `collective_rpc`. What a worker finds different, it raises, and the step ends with it.
"""

from __future__ import annotations

from typing import Any

import torch

from workers.verl.digests import Sent, held, refuse_mismatch
from workers.verl.probe import known_layout
from workers.verl.slices import Layout


def compare(model: Any, sent: list[dict[str, int]], layout: Layout, vocabulary: int, rank: int, name: str) -> None:
    """On one rank. model: of vLLM's worker. sent: by rank. Raises SyncMismatch."""
    found = held(model.named_parameters(), layout, vocabulary, rank)
    refuse_mismatch([sent[rank]], [found], layout, f"{name}, rank {rank}")


def register() -> None:
    """Both classes are made when verl asks for them: processes without vLLM's part of the work do not import it."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _replica)
    base._ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.Adapter"


def _replica() -> Any:
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    class Server(vLLMHttpServer):  # type: ignore[misc]
        def _get_worker_extension_cls(self) -> str:
            return f"{__name__}.Extension"

    class Replica(vLLMReplica):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(Server)

    return Replica


def _extension() -> Any:
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    class Extension(vLLMColocateWorkerExtension):  # type: ignore[misc]
        """A part of each worker of vLLM."""

        def longhaul_compare(
            self, sent: list[dict[str, int]], layout: tuple[int, int, int, bool], vocabulary: int, name: str
        ) -> None:
            from vllm.distributed import get_tensor_model_parallel_rank

            rank = get_tensor_model_parallel_rank()
            compare(self.model_runner.model, sent, Layout(*layout), vocabulary, rank, name)

    return Extension


def _adapter() -> Any:
    from verl.workers.rollout.vllm_rollout import ServerAdapter

    class Adapter(ServerAdapter):  # type: ignore[misc]
        """Lives in each process that trains; that of an engine's first rank asks for the comparison."""

        async def update_weights(self, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
            layout = known_layout(self.model_config.hf_config, self.config.tensor_model_parallel_size)
            if layout is None:  # the driver's probe compares
                await super().update_weights(weights, global_steps=global_steps, **kwargs)
                return
            sent = Sent(layout, getattr(torch, self.config.dtype))
            await super().update_weights(sent.watch(weights), global_steps=global_steps, **kwargs)
            told = (layout.heads, layout.kv_heads, layout.ranks, layout.is_tied)
            await self._execute_method(
                "longhaul_compare", args=(sent.by_rank, told, sent.vocabulary, f"replica {self.replica_rank}")
            )

    return Adapter


def __getattr__(name: str) -> Any:
    """`Adapter` and `Extension`, by the names under which verl and vLLM look for them."""
    makers = {"Adapter": _adapter, "Extension": _extension}
    if name not in makers:
        raise AttributeError(name)
    globals()[name] = makers[name]()
    return globals()[name]
