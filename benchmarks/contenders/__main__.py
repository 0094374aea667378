"""Runs one contender in this process for `benchmarks.grpo`: `python -m benchmarks.contenders JOB REPORT` (JSON files).

A failure is reported with its reason. Only a process that dies leaves no report.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.contenders import ours, trl_grpo
from benchmarks.contenders.report import Budget, Meter, Report
from benchmarks.contenders.workload import Workload, write_model

TRL = {
    "trl": trl_grpo.Options(),
    "trl-vllm": trl_grpo.Options(vllm=True),
    "trl-vllm-sleep": trl_grpo.Options(vllm=True, sleep=True),
    "trl-vllm-bf16": trl_grpo.Options(vllm=True, quantized=False),
}


def main(job_file: Path, report_file: Path) -> int:
    job: dict[str, Any] = json.loads(job_file.read_text())
    report = Report(job["contender"], job["workload"]["group_size"])
    try:
        perform(job, report)
        report.status = "ok"
    except Exception as error:  # any failure of a contender is its result
        traceback.print_exc()
        kind = type(error).__name__
        report.status = "out of memory" if "OutOfMemory" in kind or "out of memory" in str(error) else "failed"
        report.reason = f"{kind}: {' '.join(str(error).split())}"[:400]
    report_file.write_text(json.dumps(report, default=vars))
    return 0


def perform(job: dict[str, Any], report: Report) -> None:
    work, model, name = Workload(**job["workload"]), Path(job["model"]), job["contender"]
    if name == "model":
        return write_model(work.shape, model)
    job = job | {"overrides": overrides_of(job)}
    meter = Meter(report, job["began"], job["cap_gib"])
    budget = Budget(**job["budget"])
    if name in TRL:
        options = trl_grpo.Options(TRL[name].vllm, TRL[name].sleep, TRL[name].quantized, job["vllm_share"])
        return trl_grpo.run(work, model, options, meter, budget)
    if name.startswith("decode "):
        from benchmarks.contenders import decode

        return decode.run(work, model, name.removeprefix("decode "), job, meter, budget)
    if name.startswith("profile "):
        from benchmarks.contenders import profiled

        return profiled.run(work, model, name.removeprefix("profile "), job["overrides"], meter)
    if name.startswith("check "):
        from benchmarks.contenders import gate

        return gate.run(work, model, name.removeprefix("check "), job["overrides"], meter)
    return ours.run(work, model, name, job["overrides"], meter, budget)


def overrides_of(job: dict[str, Any]) -> list[str]:
    """Knobs of our own contenders, including the requested cap, which the profile would otherwise override."""
    return [f"memory.cap_gib={job['cap_gib']}", *job["overrides"]]


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
