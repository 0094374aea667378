"""Tests read as the specification: a folder for each package, and what several of them need."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
