"""All weights trained over several GPUs, with FSDP2 (`torch.distributed.fsdp.fully_shard`).

Weights are sharded by rows: a rank keeps only its rows, with their gradient, float32 copy and moments. Gradients are
summed, not averaged, because an update divides by the size of the whole minibatch.

Each layer is a group, gathered for its pass. Gradients are exchanged in every backward pass, because a whole gradient
would cost the memory that sharding saves. All ranks make those passes together and in equal number, so running out of
memory in one ends the attempt.
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
from workers.models.master import MasterWeights
from workers.models.optimizer import AnyOptimizer, trainable
from workers.models.packing import Batch, Unit, passes_together
from workers.models.parallel import Several
from workers.ranks.group import Group

Value = TypeVar("Value")
TOGETHER = "a pass that all GPUs make together"


class Shards(Several):
    """One rank's model of `group`, wrapped in place. Outside `whole`, its weights are shards.

    A pass that all ranks make together is a wait in every layer, so the stopwatch does not count it.
    """

    def __init__(self, model: Any, group: Group) -> None:
        """model: from `open_policy`, the same on every rank."""
        super().__init__(group)
        self._model = model
        trained = trainable(model)
        self.gathered_bytes = sum(parameter.nbytes for parameter in trained.values())
        self._shapes = {name: parameter.shape for name, parameter in trained.items()}
        # The written-out layers read weights without calling their modules, and only those gather a shard.
        model.fast_runner = None
        self._mesh = init_device_mesh(model.device.type, (group.size,))
        how: dict[str, Any] = {"mesh": self._mesh, "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}
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
        self.parts = self

    # --- whole weights -------------------------------------------------------------------------------------------

    @contextmanager
    def whole(self) -> Iterator[None]:
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

    def _unshard(self) -> None:
        with applied_once("gathering the weights"):
            self._model.set_reshard_after_forward(False)
            for module in self._modules:
                module.unshard()
        self._is_whole = True

    def _reshard(self) -> None:
        if self._is_whole:
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
        with applied_once(TOGETHER):
            yield

    def partition(self, units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[tuple[Batch, bool]]:
        together = passes_together(units, self.group.size, rollouts, row_tokens)
        return [passes[self.group.rank] for passes in together]

    def run(self, work: Callable[[], Value]) -> Value:
        self._work = work
        try:
            # On a GPU, FSDP before PyTorch 2.13 fails for a method without arguments.
            return self._model.pass_of_all(None)  # type: ignore[no-any-return]
        finally:
            self._work = lambda: None

    def passed(self) -> None:
        for name, shard in self._sharded.items():
            if shard.grad is not None:
                self._add(name, _local(shard.grad))
                shard.grad = None

    def _add(self, name: str, gradient: Tensor) -> None:
        """Sums in float32 whatever the weights' dtype: bfloat16 would lose what later passes of a minibatch add."""
        self._gradients[name] = self._gradients[name].add_(gradient) if name in self._gradients else gradient.float()

    def complete(self, optimizer: AnyOptimizer) -> None:
        if isinstance(optimizer, MasterWeights):
            optimizer.give(self._gradients)
        else:
            for name, gradient in self._gradients.items():
                self.parameters[name].grad = gradient
        self._gradients = {}

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

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Copy this rank's rows from the whole weights. Call it inside `whole`."""
        live = dict(self._model.named_parameters())
        for name, mine in self.parameters.items():
            mine.data.copy_(self.part(live[name].detach()))

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
