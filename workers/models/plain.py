"""Passes by plain transformers, for models that our own code cannot compute.

Rows hold one prompt and one completion, beginning at the first column and padded on the right. Such a pass needs no
mask and no positions: no token of a causal model depends on what follows it, be it dense, a mixture of experts, hybrid
or recurrent. So it is the pass of the single sequence, whatever masks, windows and states the model makes for itself.
`profiles/architecture.py` says which models these are.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from profiles.architecture import reason_against, refusal
from profiles.description import Architecture
from profiles.errors import ExitCode, LonghaulError
from profiles.families import architecture_of
from profiles.schema import Profile
from workers.models import torch_setup
from workers.models.packing import Pack


def described(model: Any) -> Architecture | None:
    """The architecture that the model's config describes, for the sequences of this run; None if its family is
    unknown."""
    if not hasattr(model, "longest"):  # `choose_path` has not decided yet
        return architecture_of(model.config.to_dict())
    kept: Architecture | None = model.architecture
    return kept


def choose_path(model: Any, profile: Profile) -> str:
    """Decide for `model` how it is computed in this run, and return `reason_of`. Raises LonghaulError (INPUT) for one
    that nothing computes at the lengths of this run."""
    longest = profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens
    if why := refusal(model.config.to_dict(), longest):
        raise LonghaulError(
            f"this model cannot be sampled yet: {why}",
            kept="the run, unchanged",
            next_command="the same command with a smaller sampling.max_prompt_tokens or sampling.max_completion_tokens",
            exit_code=ExitCode.INPUT,
        )
    found = architecture_of(model.config.to_dict())
    model.longest, model.architecture = longest, found and found.within(longest)
    model.plain_reason = _reason(model)
    return reason_of(model)


def reason_of(model: Any) -> str:
    """Why plain transformers computes `model`; empty if our own code does."""
    found = getattr(model, "plain_reason", None)
    return _reason(model) if found is None else str(found)


def _reason(model: Any) -> str:
    if reason := torch_setup.reason_against(model.device):
        return reason
    config = model.config.to_dict()
    if reason := reason_against(config):
        return reason
    found = architecture_of(config)
    wanted = found.model_class if found else ""
    # Over several GPUs the class is FSDP's, a subclass of the model's own.
    return "" if wanted in {one.__name__ for one in type(model).__mro__} else f"{type(model).__name__} is not {wanted}"


def row_tokens_for(model: Any, wanted: int) -> int:
    """Row length for packing completions; 0 gives each completion a row of its own."""
    return 0 if reason_of(model) else wanted


def logits_of(model: Any, pack: Pack) -> Tensor:
    """The model's logits for the pack's completion tokens, [N, V]. Each row of the pack is one unit."""
    width = pack.ids.shape[1]
    rows, columns = pack.predictors // width, pack.predictors % width
    first, options = 0, {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:  # logits over the prompt would be thrown away
        first = int(columns.min())
        options = {"logits_to_keep": width - first}
    logits: Tensor = model(input_ids=pack.ids, use_cache=False, **options).logits
    return logits[rows, columns - first]
