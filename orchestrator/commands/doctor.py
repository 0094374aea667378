"""Check whether this machine, or a cluster's nodes, can run a profile, and say how to fix each problem.

Changes nothing; `--cluster` and `--one-step` remove what they made. The exit code is 0, or the code with which a run
would end because of the first failed check.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict

from orchestrator import packages
from orchestrator.arguments import add_overrides
from orchestrator.display.wording import among, harmless
from orchestrator.doctor import Finding, examine
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile
from profiles.schema import Profile

SIGNS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="pocket", metavar="NAME", help="profile to check for (pocket)")
    add_overrides(parser, "override a knob of the profile")
    parser.add_argument(
        "--cluster", action="store_true", help="check the scheduler and each node that a job of the profile would get"
    )
    parser.add_argument(
        "--one-step", action="store_true", help="then train one step of the profile in a run that is removed again"
    )


def run(args: argparse.Namespace) -> int:
    profile = load_profile(args.profile, args.overrides).profile
    findings: list[Finding] = []
    for finding in checks(profile, args, findings):
        findings.append(finding)
        if not args.json:
            sys.stdout.write(among(args.runs, line(finding)))
            sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    failed = [finding for finding in findings if finding.state == "fail"]
    if not args.json:
        sys.stdout.write(
            among(args.runs, closing(findings, args.profile, "this cluster" if args.cluster else "this machine"))
        )
    return int(failed[0].exit_code if failed else ExitCode.OK)


def checks(profile: Profile, args: argparse.Namespace, before: list[Finding]) -> Iterator[Finding]:
    """The findings that the command line asks for. before: those that were told until now."""
    if args.cluster:
        packages.check("run")
        from orchestrator.cluster_doctor import examine_cluster

        yield from examine_cluster(profile, args.runs)
    else:
        yield from examine(profile, args.runs)
    if args.one_step:
        yield one_step(profile, args, has_failed=any(finding.state == "fail" for finding in before))


def one_step(profile: Profile, args: argparse.Namespace, *, has_failed: bool) -> Finding:
    """Run a step as a finding. What the run prints goes to standard error where findings are for a program."""
    if has_failed:
        return Finding("one step", "warn", "not tried: a check before it failed", "the same command after its remedy")
    packages.check("run")
    from orchestrator.rehearsal import one_step as run_one_step
    from orchestrator.signals import SIGNALS

    SIGNALS.install()
    began = time.monotonic()
    try:
        with redirect_stdout(sys.stderr) if args.json else nullcontext():
            run_one_step(profile, args.runs, args)
    except LonghaulError as error:
        return Finding("one step", "fail", f"{error.what} (kept: {error.kept})", error.next_command, error.exit_code)
    detail = f"trained, checkpoint verified and read back, {time.monotonic() - began:.0f} s with its start"
    return Finding("one step", "ok", detail)


def line(finding: Finding) -> str:
    """One finding as text, with its remedy below. (pure)"""
    text = f"{SIGNS[finding.state]:5} {finding.check:17} {harmless(finding.detail)}\n"
    return text + (f"      {'':17} -> {harmless(finding.fix)}\n" if finding.fix else "")


def closing(findings: list[Finding], profile: str, place: str) -> str:
    """place: what was checked. (pure)"""
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if failed:
        return f"\n{failed} of {len(findings)} checks failed: {place} cannot run {profile} yet\n"
    tail = f", {warned} with a warning" if warned else ""
    return f"\n{len(findings)} checks passed{tail}; next: python -m orchestrator run --profile {profile}\n"
