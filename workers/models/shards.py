"""A model over several GPUs: "freeze, inject, wrap" with FSDP2 (`torch.distributed.fsdp.fully_shard`).

What is frozen is ignored and stays whole on every GPU, 4-bit weights among it: FSDP never sees them. What is trained is
sharded by rows: the rank's rows, their gradient, their float32 copy and their moments are all that it keeps. Gradients
are summed, not averaged: an update's divisor is that of the whole minibatch.

Adapters are small. They are one group, gathered before a minibatch; its passes are then each rank's own, and their
gradients are exchanged once, at the end. A rank that runs out of memory in a pass keeps nobody waiting: all agree at
the end of the passes, and repeat them smaller.

Where all weights are trained, each layer is a group that is gathered for its pass, and gradients are exchanged in every
backward pass, as a whole gradient would take what sharding saves. Those passes all ranks make together, equally many of
them; running out of memory in one ends the attempt.
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
from workers.models.parallel import Single
from workers.ranks.group import Group
from workers.ranks.partition import partition_passes

Item = TypeVar("Item")
Value = TypeVar("Value")
TOGETHER = "a pass that all GPUs make together"


class Shards(Single):
    """The model of one rank of `group`, wrapped in place. While nothing is `whole`, its trained weights are shards."""

    def __init__(self, model: Any, group: Group) -> None:
        """model: as `open_policy` made it, the same on every rank."""
        self.group, self._model = group, model
        fast_graphs.allow(model, with_graphs=False)  # FSDP puts the weights elsewhere each time
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
        self.run(lambda: None)  # FSDP takes the module whose pass comes first for the root
        self._reshard()
        live = trainable(model)
        self._sharded: dict[str, Any] = {name: live[name] for name in trained}
        self.parameters: Mapping[str, nn.Parameter] = {
            name: nn.Parameter(_local(one)) for name, one in self._sharded.items()
        }

    # --- whole weights -------------------------------------------------------------------------------------------

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All weights whole and plain, on every rank. Nothing inside is an exchange; may lie inside another."""
        if self._is_whole:
            yield
            return
        self._unshard()
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):  # any other ends the process: the ranks would wait for it here
                self._reshard()
            raise
        self._reshard()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.whole(), self.group.agreed():
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
            self._model.set_reshard_after_forward(False, recurse=False)  # the root's is needed again at once
        for module in self._modules:
            module.reshard()
        self._is_whole = False

    def _forget_passes(self) -> None:
        """A backward pass over nothing. FSDP remembers passes of layers until one, to gather ahead in its order; ranks
        that made different passes without gradient would then gather different layers, and wait for ever."""
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
            with self.group.agreed():
                yield
        except Exception:
            self.forget()
            raise

    def mine(self, batches: Sequence[Item]) -> list[Item]:
        return [batch for batch, _ in partition_passes(batches, self.group.rank, self.group.size, is_even=False)]

    def partition(self, batches: Sequence[Item]) -> list[tuple[Item, bool]]:
        return partition_passes(batches, self.group.rank, self.group.size, is_even=not self._is_adapter)

    def run(self, work: Callable[[], Value]) -> Value:
        if self._is_adapter and self._is_whole:
            return work()
        self._work = work
        try:
            # On a GPU, FSDP of PyTorch before 2.13 fails for a method without arguments.
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
        """In float32, whatever the weights are in: bfloat16 would lose what later passes of a minibatch add."""
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
        """Sum the gradients of all passes over the ranks, each rank's rows to it.

        FSDP does so in a backward pass: one over nothing, after which it looks at what has gathered. A rank without a
        pass takes part with zeros.
        """
        with applied_once("exchanging gradients"):
            for parameter in self._model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._is_whole = False  # so that the pass is FSDP's
            self.run(self._nothing).backward()  # type: ignore[no-untyped-call]
            self._reshard()
        for name, shard in self._sharded.items():
            self._add(name, _local(shard.grad))
            shard.grad = None

    def clip(self, optimizer: AnyOptimizer, model: nn.Module, max_norm: float) -> Tensor:
        gradients = gradients_of(optimizer)
        squares = torch.zeros(1, dtype=torch.float64)
        if gradients:  # waits for the device once
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
        """FSDP fills the whole weights behind autograd's back, so copies of them must be told."""
        for module in self._model.modules():
            if isinstance(module, lora.LoraLinear):
                module.forget_copies()

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Take this rank's rows of the weights as they are whole now. Inside `whole`."""
        live = dict(self._model.named_parameters())
        for name, mine in self.parameters.items():
            mine.data.copy_(self.part(live[name].detach()))
        self.changed()

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's rows of something that has one for each row of a weight."""
        chunks = tensor.chunk(self.group.size)
        return chunks[self.group.rank] if self.group.rank < len(chunks) else tensor[:0]

    def gathered(self, name: str, mine: Tensor) -> Tensor:
        """All rows of something of the parameter `name`, on the CPU. All ranks ask for the same in the same order."""
        shape = self._shapes[name]
        stride = torch.empty(shape, device="meta").stride()
        shard: Any = DTensor.from_local(
            mine.detach().to(self._model.device), self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
        return shard.full_tensor().cpu()  # type: ignore[no-any-return]

    def is_sharded(self, name: str, value: Any) -> bool:
        """Whether a value of an optimiser's state has a row for each row of the parameter's shard."""
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape == self.parameters[name].shape


def gradients_of(optimizer: AnyOptimizer) -> list[Tensor]:
    """What the next step will apply."""
    if isinstance(optimizer, MasterWeights):
        return optimizer.gradients
    return [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]


@torch.no_grad()
def _local(sharded: Any) -> Tensor:
    """The rows of a DTensor that this rank holds: not a copy."""
    return sharded.to_local().detach()  # type: ignore[no-any-return]
