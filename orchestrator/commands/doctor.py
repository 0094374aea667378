"""Whether this machine can carry a run, check by check, each with its remedy.

Nothing is changed. The exit code is 0, or the one that a run would end with for the first check that fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from orchestrator.display.wording import among, harmless
from orchestrator.doctor import Finding, examine
from profiles.errors import ExitCode
from profiles.load import load_profile

SIGNS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="pocket", metavar="NAME", help="what the machine shall carry (pocket)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a knob of the profile")


def run(args: argparse.Namespace) -> int:
    profile = load_profile(args.profile, args.set).profile
    findings = []
    for finding in examine(profile, args.runs):
        findings.append(finding)
        if not args.json:
            sys.stdout.write(among(args.runs, line(finding)))
            sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    failed = [finding for finding in findings if finding.state == "fail"]
    if not args.json:
        sys.stdout.write(among(args.runs, closing(findings, args.profile)))
    return int(failed[0].exit_code if failed else ExitCode.OK)


def line(finding: Finding) -> str:
    """One finding for a person, with its remedy below it. (pure)"""
    text = f"{SIGNS[finding.state]:5} {finding.check:17} {harmless(finding.detail)}\n"
    return text + (f"      {'':17} -> {harmless(finding.fix)}\n" if finding.fix else "")


def closing(findings: list[Finding], profile: str) -> str:
    """(pure)"""
    failed = sum(finding.state == "fail" for finding in findings)
    warned = sum(finding.state == "warn" for finding in findings)
    if failed:
        return f"\n{failed} of {len(findings)} checks failed: this machine cannot carry {profile} yet\n"
    tail = f", {warned} with a warning" if warned else ""
    return f"\n{len(findings)} checks passed{tail}; next: python -m orchestrator run --profile {profile}\n"
