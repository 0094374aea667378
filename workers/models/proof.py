"""What a checkpoint says about its adapter, so that whoever loads it can prove that this is what now answers.

An adapter that is silently not loaded leaves the base model, which answers well: validating it shows a flat curve and
nothing else. So three things are compared: the base by the hash of its files, the live matrices bit by bit, and what
the model says to a fixed probe.
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

FILENAME = "adapter_proof.json"
PROBE_TOKENS = 32
PROBE_LOGITS = 64
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Share of the largest logit by which other kernels may change one; on the same machine nothing changes."""


class Stored(msgspec.Struct, frozen=True):
    """`adapter_proof.json`."""

    base_sha256: str
    adapter_sha256: str
    num_trained: int
    """B matrices that are not all zero."""
    logits: list[float]
    """Of the last place of the probe, at places spread over the vocabulary, with the adapter."""
    base_logits: list[float]
    """The same without it."""


def base_sha256(directory: Path) -> str:
    """Identity of a base model: weights, config and tokenizer."""
    found = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), directory / "config.json", directory / "tokenizer.json"]):
        with path.open("rb") as file:
            found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


def read(checkpoint: Path) -> Stored:
    """The proof in a checkpoint. Raises LonghaulError (INPUT) where it has none."""
    try:
        return msgspec.json.decode((checkpoint / FILENAME).read_bytes(), type=Stored)
    except (OSError, msgspec.MsgspecError) as error:
        raise _refused(checkpoint, f"{FILENAME} cannot be read: {error}") from error


def refuse_other_base(checkpoint: Path, directory: str, sha256: str) -> None:
    """Raises LonghaulError (INPUT) where the adapter was trained on another base than the one in `directory`."""
    if read(checkpoint).base_sha256 != sha256:
        raise LonghaulError(
            f"the adapter of checkpoint {checkpoint.name} was trained on another base model than {directory} holds now",
            kept="the checkpoint, unchanged; nothing was loaded",
            next_command=f"restore the base model in {directory}, then the same command",
            exit_code=ExitCode.INPUT,
        )


class Proof:
    """Written at each save from the live model; at each load, after the matrices, the live model is compared with it.

    Registered, though it holds no state: what the next step depends on is in the files that it vouches for.
    """

    filename = FILENAME

    def __init__(self, model: Any, sha256: str) -> None:
        self._model, self._base = model, sha256

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self._measured()) + b"\n")

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) unless the live adapter is the stored one, and heard in what the model says."""
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
    """Why the live model is not the stored one; empty: it is. (pure)"""
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
            f"it answers a fixed probe otherwise than when it was saved: a logit is off by {error:.3g} > {allowed:.3g}"
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
    if plain.reason_of(model):  # its head may scale or bend the logits, and its parts have other names
        found: Tensor = model(input_ids=ids, use_cache=False).logits[:, -1]
    else:
        found = model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1])
    logits = found[0].float()
    places = torch.linspace(0, vocabulary - 1, min(PROBE_LOGITS, vocabulary)).long()
    return logits[places.to(logits.device)].tolist()


def without_adapter(model: Any) -> list[float]:
    """What the base model alone answers to the probe."""
    with disabled(model):
        return probe(model)


def _sha256_of(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(f"{name} {list(tensor.shape)}\n".encode())
        # A copy: what numpy has looked at can never be given back, as sharded weights are after each use.
        copied = tensor.detach().to("cpu", copy=True).contiguous()
        found.update(copied.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _refused(checkpoint: Path, problem: str) -> LonghaulError:
    return LonghaulError(
        f"the adapter of checkpoint {checkpoint.name} is not what the model would use: {problem}",
        kept="the checkpoint, unchanged",
        next_command="python -m orchestrator status",
        exit_code=ExitCode.INPUT,
    )
