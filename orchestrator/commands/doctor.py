"""Check whether this machine, or a cluster's nodes, can run a profile, and say how to fix each problem.

With --run NAME, check what that run has on disk instead: store, back-ups, every byte of every checkpoint. Changes
nothing without --repair; `--cluster` and `--one-step` remove what they made. The exit code is 0, or the code with which
a run would end because of the first failed check.
"""

from __future__ import annotations

import argparse
import json
import os
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
    parser.add_argument(
        "--repair", action="store_true", help="with --run: first do what is safe; nothing that is whole is deleted"
    )


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in of_run(args) if args.run is not None or args.repair else of_profile(args, findings):
        findings.append(finding)
        if not args.json:
            sys.stdout.write(among(args.runs, line(finding)))
            sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    failed = [finding for finding in findings if finding.state == "fail"]
    if not args.json:
        sys.stdout.write(among(args.runs, closing_of(args, findings)))
    return int(failed[0].exit_code if failed else ExitCode.OK)


def of_run(args: argparse.Namespace) -> Iterator[Finding]:
    """The findings of a run's files, after the repairs that were asked for."""
    packages.check("run")
    from orchestrator.run_directory import make_directory, named_run
    from orchestrator.run_doctor import examine_run, repair_run
    from state.lock import RunLock

    run = named_run(args, "doctor")
    if args.repair:
        os.umask(0o077)
        make_directory(run)
        lock = RunLock.acquire(run)
        try:
            for did in repair_run(run):
                yield Finding("repaired", "ok", did)
        finally:
            lock.release()
    yield from examine_run(run)


def of_profile(args: argparse.Namespace, before: list[Finding]) -> Iterator[Finding]:
    return checks(load_profile(args.profile, args.overrides).profile, args, before)


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


def closing_of(args: argparse.Namespace, findings: list[Finding]) -> str:
    """The last line, by what was checked. (pure)"""
    if args.run is not None:
        repair = f"python -m orchestrator doctor --run {args.run} --repair"
        return closing(findings, f"run '{args.run}' needs: {repair}", f"python -m orchestrator run --run {args.run}")
    place = "this cluster" if args.cluster else "this machine"
    failed = f"{place} cannot run {args.profile} yet"
    return closing(findings, failed, f"python -m orchestrator run --profile {args.profile}")


def closing(findings: list[Finding], if_failed: str, if_passed: str) -> str:
    """if_failed: what that means. if_passed: the next command. (pure)"""
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if failed:
        return f"\n{failed} of {len(findings)} checks failed: {if_failed}\n"
    tail = f", {warned} with a warning" if warned else ""
    return f"\n{len(findings)} checks passed{tail}; next: {if_passed}\n"
