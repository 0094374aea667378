"""A model over several GPUs: "freeze, inject, wrap" with FSDP2 (`torch.distributed.fsdp.fully_shard`).

FSDP ignores frozen weights, including 4-bit ones; they stay whole on every GPU. Trained weights are sharded by rows: a
rank keeps only its rows, with their gradient, float32 copy and moments. Gradients are summed, not averaged, because an
update divides by the size of the whole minibatch.

Adapters are small, so they form one group that is gathered before a minibatch. Each rank then makes its own passes, and
gradients are exchanged once, at the end. A rank that runs out of memory in a pass blocks no other: all agree at the end
of the passes, and repeat them with smaller sizes.

If all weights are trained, each layer is a group, gathered for its pass. Gradients are exchanged in every backward
pass, because a whole gradient would cost the memory that sharding saves. All ranks make those passes together and in
equal number, so running out of memory in one ends the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from workers.failures import is_out_of_memory
from workers.memory.phases import applied_once
from workers.models import fast_graphs, lora
from workers.models.master import MasterWeights
from workers.models.optimizer import AnyOptimizer, trainable
from workers.models.packing import Batch, Unit, passes_together, shares_of
from workers.models.parallel import Single
from workers.ranks.group import Group
from workers.ranks.own_work import Stopwatch

Value = TypeVar("Value")
TOGETHER = "a pass that all GPUs make together"


class Shards(Single):
    """One rank's model of `group`, wrapped in place. Outside `whole`, its trained weights are shards."""

    def __init__(self, model: Any, group: Group) -> None:
        """model: from `open_policy`, the same on every rank."""
        self.group, self._model = group, model
        self.stopwatch = Stopwatch()
        """What this rank computes without waiting. A pass that all ranks make together is a wait in every layer, so it
        does not count."""
        fast_graphs.allow(model, with_graphs=False)  # FSDP moves the weights each time, and a graph has fixed addresses
        trained = trainable(model)
        self._shapes = {name: parameter.shape for name, parameter in trained.items()}
        frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
        self._is_adapter = bool(frozen)
        self._mesh = init_device_mesh(model.device.type, (group.size,))
        how: dict[str, Any] = {
            "mesh": self._mesh,
            "ignored_params": frozen,
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
        }
        if not self._is_adapter:
            for layer in model.model.layers:
                fully_shard(layer, **how)
        fully_shard(model, **how)
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self._work: Callable[[], Any] = lambda: None
        self._is_whole = False
        self._gradients: dict[str, Tensor] = {}
        model.pass_of_all = lambda _: self._work()
        register_fsdp_forward_method(model, "pass_of_all")
        self.run(lambda: None)  # FSDP takes the first module that runs for the root
        self._reshard()
        live = trainable(model)
        self._sharded: dict[str, Any] = {name: live[name] for name in trained}
        self.parameters: Mapping[str, nn.Parameter] = {
            name: nn.Parameter(_local(one)) for name, one in self._sharded.items()
        }

    # --- whole weights -------------------------------------------------------------------------------------------

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights are whole and plain inside, on every rank. Nothing inside may exchange. Calls may nest."""
        if self._is_whole:
            yield
            return
        self._unshard()
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):  # any other error ends the process, and resharding would wait for the others
                self._reshard()
            raise
        self._reshard()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.whole(), self.group.agreed(), self.stopwatch.computing():
            yield

    def _unshard(self) -> None:
        with applied_once("gathering the weights"):
            if not self._is_adapter:
                self._model.set_reshard_after_forward(False)
            for module in self._modules:
                module.unshard()
        self._is_whole = True

    def _reshard(self) -> None:
        if not self._is_adapter and self._is_whole:
            self._forget_passes()
            self._model.set_reshard_after_forward(True)
            self._model.set_reshard_after_forward(False, recurse=False)  # the root is needed again at once
        for module in self._modules:
            module.reshard()
        self._is_whole = False

    def _forget_passes(self) -> None:
        """Run a backward pass over nothing. Until one, FSDP remembers the order of forward passes and prefetches in it.
        Ranks that made different passes without gradient would then gather different layers and wait forever."""
        with torch.enable_grad(), torch.inference_mode(False):
            self.run(self._nothing).backward()  # type: ignore[no-untyped-call]
        for shard in self._sharded.values():
            shard.grad = None

    def _nothing(self) -> Tensor:
        smallest = min(trainable(self._model).values(), key=torch.numel)
        return (smallest * 0.0).sum()

    # --- an update -----------------------------------------------------------------------------------------------

    @contextmanager
    def passes(self) -> Iterator[None]:
        if not self._is_adapter:
            with applied_once(TOGETHER):
                yield
            return
        self._unshard()
        try:
            with self.group.agreed(), self.stopwatch.computing():
                yield
        except Exception:
            self.forget()
            raise

    def mine(self, units: Sequence[Unit]) -> list[Unit]:
        share = shares_of(units, self.group.size)[self.group.rank]
        self.stopwatch.add(trained=sum(unit.tokens for unit in share))
        return share

    def partition(self, units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[tuple[Batch, bool]]:
        if self._is_adapter:
            return super().partition(self.mine(units), rollouts, row_tokens)
        together = passes_together(units, self.group.size, rollouts, row_tokens)
        return [passes[self.group.rank] for passes in together]

    def run(self, work: Callable[[], Value]) -> Value:
        if self._is_adapter and self._is_whole:
            return work()
        self._work = work
        try:
            # On a GPU, FSDP before PyTorch 2.13 fails for a method without arguments.
            return self._model.pass_of_all(None)  # type: ignore[no-any-return]
        finally:
            self._work = lambda: None

    def passed(self) -> None:
        if self._is_adapter:
            return
        for name, shard in self._sharded.items():
            if shard.grad is not None:
                self._add(name, _local(shard.grad))
                shard.grad = None

    def _add(self, name: str, gradient: Tensor) -> None:
        """Sums in float32 whatever the weights' dtype: bfloat16 would lose what later passes of a minibatch add."""
        self._gradients[name] = self._gradients[name].add_(gradient) if name in self._gradients else gradient.float()

    def complete(self, optimizer: AnyOptimizer) -> None:
        if self._is_adapter:
            self._exchange()
        if isinstance(optimizer, MasterWeights):
            optimizer.give(self._gradients)
        else:
            for name, gradient in self._gradients.items():
                self.parameters[name].grad = gradient
        self._gradients = {}

    def _exchange(self) -> None:
        """Sum the gradients of all passes over the ranks; each rank gets its rows.

        FSDP does so in a backward pass, so this runs one over nothing, and FSDP then reduces the gradients present. A
        rank without a pass contributes zeros.
        """
        with applied_once("exchanging gradients"):
            for parameter in self._model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._is_whole = False  # so that the pass goes through FSDP
            self.run(self._nothing).backward()  # type: ignore[no-untyped-call]
            self._reshard()
        for name, shard in self._sharded.items():
            self._add(name, _local(shard.grad))
            shard.grad = None

    def clip(self, optimizer: AnyOptimizer, model: nn.Module, max_norm: float) -> Tensor:
        gradients = gradients_of(optimizer)
        squares = torch.zeros(1, dtype=torch.float64)
        if gradients:  # one device synchronisation for all
            squares += (
                torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in gradients])
                .square()
                .sum()
                .cpu()
            )
        norm = self.group.exchange(squares).sqrt()[0]
        scale = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
        for one in gradients:
            one.mul_(scale)
        return norm

    def forget(self) -> None:
        self._gradients = {}
        for parameter in (*self._model.parameters(), *self._sharded.values()):
            parameter.grad = None
        if self._is_whole:
            self._reshard()

    def changed(self) -> None:
        """FSDP fills the whole weights without autograd's version counter, so their cast copies must be dropped."""
        for module in self._model.modules():
            if isinstance(module, lora.LoraLinear):
                module.forget_copies()

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Copy this rank's rows from the whole weights. Call it inside `whole`."""
        live = dict(self._model.named_parameters())
        for name, mine in self.parameters.items():
            mine.data.copy_(self.part(live[name].detach()))
        self.changed()

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor that has one row for each row of a weight."""
        chunks = tensor.chunk(self.group.size)
        return chunks[self.group.rank] if self.group.rank < len(chunks) else tensor[:0]

    def gathered(self, name: str, mine: Tensor) -> Tensor:
        """All rows of a tensor that belongs to the parameter `name`, on the CPU. All ranks call it in the same
        order."""
        shape = self._shapes[name]
        stride = torch.empty(shape, device="meta").stride()
        shard: Any = DTensor.from_local(
            mine.detach().to(self._model.device), self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
        return shard.full_tensor().cpu()  # type: ignore[no-any-return]

    def is_sharded(self, name: str, value: Any) -> bool:
        """Whether a value of the optimiser's state has a row for each row of the parameter's shard."""
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape == self.parameters[name].shape


def gradients_of(optimizer: AnyOptimizer) -> list[Tensor]:
    """The gradients that the next step will apply."""
    if isinstance(optimizer, MasterWeights):
        return optimizer.gradients
    return [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]


@torch.no_grad()
def _local(sharded: Any) -> Tensor:
    """The rows of a DTensor on this rank: a view, not a copy."""
    return sharded.to_local().detach()  # type: ignore[no-any-return]
