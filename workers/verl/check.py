"""Refuses a job that verl could not do, before anything is submitted: `python -m workers.verl.check < profile.json`.

Asked are the packages that are installed, the model's config.json, and verl's own config schema through hydra. Nothing
of verl, Ray or torch is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.families import architecture_of
from profiles.hub_model import directory_of
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES
from profiles.targets import own_targets
from workers.external.asked import answer, refused
from workers.verl.settings import Settings, Work, command_line, settings

TESTED: Mapping[str, str] = {"verl": "0.9.1", "ray": "2.60.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0"}
"""Packages whose releases differ in what we rely on, and the ones that the tests run with."""
TESTED_VLLM = "0.26.0"
VALUE_HEAD_OF_TRL = ("experimental/ppo", "models/modeling_value_head.py")
"""Where releases of TRL have the class `AutoModelForCausalLMWithValueHead`, newest first."""
INSTALL = "bash scripts/install-verl.sh"
EXAMPLE = Work(
    Path("model"), Path("tokenizer"), Path("t.parquet"), Path("v.parquet"), Path("attempt"), last_step=1, spool="ray"
)
"""Stands for places that are not known before the attempt; no name of a setting depends on them."""


def check(profile: Profile) -> None:
    """Raises LonghaulError (INPUT) with what to do where a job of this profile cannot work here."""
    check_packages(profile)
    check_heads(profile, config_of(profile))
    check_targets(profile, config_of(profile))
    compose(settings(profile, EXAMPLE))


def check_packages(profile: Profile) -> None:
    wanted = dict(TESTED)
    if profile.sampling.engine == "vllm":
        wanted["vllm"] = TESTED_VLLM
    if profile.verl.strategy == "megatron" and importlib.util.find_spec("megatron") is None:
        raise refused('verl.strategy = "megatron" needs the package megatron-core, which is not installed', INSTALL)
    for name, version in wanted.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise refused(f"the worker verl needs {name} {version}, which is not installed", INSTALL) from None
        if found != version:
            raise refused(f"{name} {found} is installed, and the worker verl was tested with {version}", INSTALL)
    check_trl()


def check_trl() -> None:
    """verl needs no TRL, but takes a class from it if there is one, and fails where that class has moved or gone."""
    if (spec := importlib.util.find_spec("trl")) is None or not spec.submodule_search_locations:
        return
    folder = Path(spec.submodule_search_locations[0])
    if not any((folder / place).exists() for place in VALUE_HEAD_OF_TRL):
        version = importlib.metadata.version("trl")
        raise refused(
            f"trl {version} is installed, which verl {TESTED['verl']} cannot be loaded beside", "pip uninstall trl"
        )


def check_targets(profile: Profile, config: Mapping[str, Any]) -> None:
    """verl hands the targets to peft as they are, so they must be the names of the model's own layers."""
    architecture = architecture_of(config)
    if not profile.adapter.rank or architecture is None or profile.verl.strategy == "megatron":
        return
    own = own_targets(architecture, profile.adapter.targets)
    if own != profile.adapter.targets:
        raise refused(
            f"verl takes adapter.targets by the model's own names, and {architecture.family} has {', '.join(own)}",
            f"python -m orchestrator run --set 'adapter.targets={json.dumps(own)}'",
        )


def config_of(profile: Profile) -> Mapping[str, Any]:
    """The model's config.json; empty where it cannot be read, which the worker explains when it loads the model."""
    if profile.model.random_init != "off":
        return ARCHITECTURES[profile.model.random_init]
    folder = directory_of(profile.model)
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_heads(profile: Profile, config: Mapping[str, Any]) -> None:
    """Raises LonghaulError (INPUT) where tensor parallelism does not divide the attention heads."""
    heads = config.get("num_attention_heads")
    for knob in ("tensor_parallel", "train_tensor_parallel"):
        parts = getattr(profile.verl, knob)
        if isinstance(heads, int) and heads % parts:
            fits = [n for n in range(1, 9) if heads % n == 0]
            raise refused(
                f"verl.{knob} = {parts} does not divide the {heads} attention heads of {profile.model.path}",
                f"the same command with --set verl.{knob}=N, N one of {', '.join(map(str, fits))}",
            )


def compose(found: Settings) -> None:
    """Let hydra put the settings into the schema of the installed verl. Raises LonghaulError (INPUT) for a name or a
    type that it does not know."""
    from hydra import compose as composed
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise refused("the package verl is not installed", INSTALL)
    folder = Path(spec.origin).parent / "trainer" / "config"
    words = [word for word in command_line(found) if not word.startswith("hydra.")]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            composed("ppo_trainer", overrides=words)
    except (HydraException, OmegaConfBaseException) as error:
        first = str(error).strip().partition("\n")[0]
        raise refused(f"verl {TESTED['verl']} refuses a setting: {first}", INSTALL) from error


if __name__ == "__main__":
    raise SystemExit(answer(check))
