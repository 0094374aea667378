"""Whether a run fits the memory of its host, and what to type if it does not."""

from __future__ import annotations

import argparse

from orchestrator.display.wording import size
from orchestrator.hours.prediction import Prediction
from orchestrator.judging import ProfileVerdict
from orchestrator.preflight import command_of, memory_line
from orchestrator.ram import ram_total
from profiles.errors import ExitCode, LonghaulError


def memory_lines(verdict: ProfileVerdict, prediction: Prediction) -> str:
    """One line about memory: of the GPU if there is a plan, and of the host."""
    host = f"up to {size(prediction.ram_bytes)} of {size(ram_total())} RAM expected"
    planned = memory_line(verdict)
    return f"{planned}; {host}" if planned else f"memory: {host}"


def is_out_of_memory(prediction: Prediction, verdict: ProfileVerdict) -> bool:
    """Whether the host is too small, and the profile refuses such a start. Workers of a scheduler are elsewhere."""
    profile = verdict.profile
    is_here = profile.launch.launcher == "local"
    return is_here and profile.memory.on_small_card == "refuse" and prediction.ram_bytes > ram_total()


def too_little_memory(prediction: Prediction, verdict: ProfileVerdict, args: argparse.Namespace) -> LonghaulError:
    processes = "" if verdict.profile.run.gpus == 1 else f" of {verdict.profile.run.gpus} processes"
    return LonghaulError(
        f"this machine is too small for profile {verdict.profile.name!r}: up to {size(prediction.ram_bytes)} of host "
        f"memory{processes} are expected, but it has {size(ram_total())}",
        kept="nothing was started",
        next_command=f"{command_of(args)} --set memory.on_small_card=warn   (start anyway), or a smaller model",
        exit_code=ExitCode.CUDA_OOM,
    )
