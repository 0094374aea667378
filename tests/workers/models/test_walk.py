"""Every causal architecture that transformers knows is computed rightly, or refused with a reason, as the docs say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from tests import REPOSITORY
from tests.workers import walk

DOCS = (REPOSITORY / "docs/models.md").read_text()
IS_DOCUMENTED = f"(transformers {transformers.__version__})" in DOCS
"""The list is of one version; other versions know other architectures."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", walk.kinds())
def test_an_architecture_is_right_or_refused(kind: str, tmp_path: Path) -> None:
    found = walk.outcome(kind, tmp_path)
    assert found.refusal or found.proof < found.bound
    if IS_DOCUMENTED:
        assert walk.rows_in(DOCS)[kind] == found.text


@pytest.mark.skipif(not IS_DOCUMENTED, reason="the docs are of another version of transformers")
def test_the_docs_list_every_architecture() -> None:
    """Where they do not: python -m tests.workers.walk"""
    assert sorted(walk.rows_in(DOCS)) == walk.kinds()


def test_most_architectures_are_computed() -> None:
    """A fault that refuses all of them would pass the tests above."""
    rows = walk.rows_in(DOCS).values()
    assert sum("| refused |" in one for one in rows) < len(rows) / 3
