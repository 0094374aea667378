"""Proof, stored in a checkpoint, that its adapter is the one that answers after loading.

If an adapter silently fails to load, the base model answers, and answers well: validation shows a flat curve and no
error. So loading compares three things: the hash of the base's files, the live matrices bit by bit, and the model's
logits for a fixed probe.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from workers.models import plain
from workers.models.adapters import adapter_of, count_trained, disabled
from workers.models.head import logits_of

FILENAME = "adapter_proof.json"
PROBE_TOKENS = 32
PROBE_LOGITS = 64
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""How far other kernels may move a logit, as a share of the largest. On the same machine nothing changes."""


class Stored(msgspec.Struct, frozen=True):
    """`adapter_proof.json`."""

    base_sha256: str
    adapter_sha256: str
    num_trained: int
    """Number of B matrices that are not all zero."""
    logits: list[float]
    """Logits at the probe's last position, for tokens spread over the vocabulary, with the adapter."""
    base_logits: list[float]
    """The same without the adapter."""


def read(checkpoint: Path) -> Stored:
    """The proof in a checkpoint. Raises LonghaulError (INPUT) if it has none."""
    try:
        return msgspec.json.decode((checkpoint / FILENAME).read_bytes(), type=Stored)
    except (OSError, msgspec.MsgspecError) as error:
        raise _refused(checkpoint, f"{FILENAME} cannot be read: {error}") from error


def refuse_other_base(checkpoint: Path, directory: str, sha256: str) -> None:
    """Raises LonghaulError (INPUT) if the adapter was trained on another base than the one in `directory`."""
    if read(checkpoint).base_sha256 != sha256:
        raise LonghaulError(
            f"the adapter of checkpoint {checkpoint.name} was trained on another base model than {directory} holds now",
            kept="the checkpoint, unchanged; nothing was loaded",
            next_command=f"restore the base model in {directory}, then the same command",
            exit_code=ExitCode.INPUT,
        )


class Proof:
    """Written from the live model at each save. At each load, after the matrices, the live model is compared with it.

    It holds no state of its own, but registering it makes every save and load run the proof.
    """

    filename = FILENAME

    def __init__(self, model: Any, sha256: str) -> None:
        self._model, self._base = model, sha256

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self._measured()) + b"\n")

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) unless the live adapter is the stored one and affects the model's output."""
        if problem := difference(read(path.parent), self._measured(), TOLERANCE[self._model.dtype]):
            raise _refused(path.parent, problem)

    def _measured(self) -> Stored:
        return Stored(
            base_sha256=self._base,
            adapter_sha256=_sha256_of(adapter_of(self._model)),
            num_trained=count_trained(self._model),
            logits=probe(self._model),
            base_logits=without_adapter(self._model),
        )


def difference(stored: Stored, live: Stored, tolerance: float) -> str:
    """Why the live model is not the stored one; empty if it is. (pure)"""
    if stored.base_sha256 != live.base_sha256:
        return "it was trained on another base model"
    if stored.adapter_sha256 != live.adapter_sha256:
        return (
            f"the matrices in the model are not those that were saved ({live.num_trained} of its B matrices are not "
            f"zero, {stored.num_trained} were)"
        )
    error, allowed = _distance(stored.logits, live.logits), tolerance * max(map(abs, stored.logits))
    if not error <= allowed:
        return (
            f"its answer to a fixed probe differs from when it was saved: a logit is off by {error:.3g} > {allowed:.3g}"
        )
    shift = _distance(stored.logits, stored.base_logits)
    if shift > 0 and _distance(live.logits, live.base_logits) == 0:
        return f"the model answers as if it had no adapter, which moved a logit by {shift:.3g} when it was saved"
    return ""


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def probe(model: Any) -> list[float]:
    """Logits of fixed tokens after a fixed prompt."""
    vocabulary = model.config.vocab_size
    ids = torch.tensor([[(7919 * place + 13) % vocabulary for place in range(PROBE_TOKENS)]], device=model.device)
    if plain.reason_of(model):  # its head may scale or cap the logits, and its parts have other names
        found: Tensor = model(input_ids=ids, use_cache=False).logits[:, -1]
    else:
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
        found = logits_of(model, hidden, plain.described(model))
    logits = found[0].float()
    places = torch.linspace(0, vocabulary - 1, min(PROBE_LOGITS, vocabulary)).long()
    return logits[places.to(logits.device)].tolist()


def without_adapter(model: Any) -> list[float]:
    """The base model's answer to the probe."""
    with disabled(model):
        return probe(model)


def _sha256_of(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(f"{name} {list(tensor.shape)}\n".encode())
        # A copy: memory that numpy has seen can never be freed, and sharded weights must be, after each use.
        copied = tensor.detach().to("cpu", copy=True).contiguous()
        found.update(copied.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _refused(checkpoint: Path, problem: str) -> LonghaulError:
    return LonghaulError(
        f"the adapter of checkpoint {checkpoint.name} is not the one that the model would use: {problem}",
        kept="the checkpoint, unchanged",
        next_command="python -m orchestrator status",
        exit_code=ExitCode.INPUT,
    )
