"""Bytes of tensors that are alive, counted at every operation: peak memory without a GPU.

What a kernel takes and gives back inside one operation is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """with Allocations() as seen: ...; seen.peak. Only what is made inside counts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs or {})):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor.untyped_storage(), is_ours=False)
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor.untyped_storage())
        return found

    def _meet(self, storage: Any, *, is_ours: bool = True) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if is_ours else 0
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        # Also of what was there before: a storage that is made later may get its place.
        weakref.finalize(storage, self._part, key)

    def _part(self, key: int) -> None:
        self.now -= self._known.pop(key, 0)
