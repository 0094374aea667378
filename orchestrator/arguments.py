"""Command-line options that several commands share."""

from __future__ import annotations

import argparse


def add_overrides(parser: argparse.ArgumentParser, text: str) -> None:
    """`--set KEY=VALUE`, any number of times, as `overrides`. text: what `--help` says of it."""
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help=text)


OF_A_RUN = "override one knob, as in --set run.seed=7; may be repeated"
