"""An optimiser over float32 copies of the weights, for models in bfloat16 or with their optimiser in host memory.

A bfloat16 weight has 8 bits of precision: rounding swallows a step of 1e-6 on a weight of 1e-2, and training stands
still. The float32 copies keep such steps, and the model's weights are the copies rounded. Gradients are summed in
float32 too, because a sum over a hundred micro-batches loses just as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights:
    """Looks like a torch optimiser. It takes each parameter's gradient, and frees it, as soon as it is complete."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        make: Callable[[Mapping[str, nn.Parameter]], torch.optim.Optimizer],
        device: torch.device,
    ) -> None:
        """parameters: the trained ones, by name. make: builds the optimiser over the copies. device: of the copies."""
        self._parameters = dict(parameters)
        self.masters = {
            name: nn.Parameter(one.detach().to(device, torch.float32, copy=True)) for name, one in parameters.items()
        }
        self.inner = make(self.masters)
        self._gradients: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            hooked: Any = parameter
            hooked.register_post_accumulate_grad_hook(partial(self._take, name))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def gradients(self) -> list[Tensor]:
        """The float32 gradients that the next step will apply."""
        return list(self._gradients.values())

    def gradient(self, name: str) -> Tensor:
        """The float32 gradient of a parameter so far; zeros if no pass had one."""
        if name in self._gradients:
            return self._gradients[name]
        return torch.zeros_like(self._parameters[name], dtype=torch.float32)

    def give(self, gradients: Mapping[str, Tensor]) -> None:
        """Set float32 gradients by name, where something other than autograd has summed them."""
        self._gradients = dict(gradients)

    def _take(self, name: str, parameter: Tensor) -> None:
        """Add a micro-batch's gradient to the float32 sum, on the parameter's device."""
        gradient = parameter.grad
        assert gradient is not None
        if name in self._gradients:
            self._gradients[name].add_(gradient)
        else:
            self._gradients[name] = gradient.float()
        parameter.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._gradients.clear()
        for parameter in self._parameters.values():
            parameter.grad = None  # running out of memory between making and taking a gradient leaves one here

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients down to `max_norm`; returns the norm before scaling."""
        gradients = list(self._gradients.values())
        if not gradients:
            return torch.zeros(())
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in gradients]))
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for one in gradients:
            one.mul_(scale)
        return norm

    @torch.no_grad()
    def step(self) -> None:
        for name, gradient in self._gradients.items():
            master = self.masters[name]
            master.grad = gradient.to(master.device)
        self.inner.step()
        for name in self._gradients:
            self.masters[name].grad = None
            self._parameters[name].copy_(self.masters[name])
        self._gradients.clear()
