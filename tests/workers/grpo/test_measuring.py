"""The stage before training with a curriculum asks the run's own verifier which answers are the same."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from profiles.grpo import Sent
from profiles.schema import Grpo
from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import (
    checkpoint_of,
    do,
    leave_torch_as_it_was,
    plain_profile,
    profile_of,
    trained,
)
from workers.grpo import trainer
from workers.grpo.difficulty import Sample
from workers.grpo.measuring import Measuring
from workers.verifiers import verify
from workers.verifiers.symbolic import Symbolic

__all__ = ["leave_torch_as_it_was"]


@pytest.mark.parametrize(("verifier", "bad"), [("math-verify", 0), ("exact", 1)])
def test_row_33_difficulties_are_told_apart_by_the_verifier_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verifier: Any, bad: int
) -> None:
    pytest.importorskip("math_verify")
    answers = [Sample("2", False, 1), Sample(r"\sqrt{4}", False, 1)]
    monkeypatch.setattr(Measuring, "_samples", lambda self, slice_: dict.fromkeys(slice_, answers))
    problems = write_problems(tmp_path / "sums.jsonl", sums(12))
    profile = profile_of(problems, grpo=Grpo(sent=Sent(enabled=True, samples=2), verifier=verifier))
    with ExitStack() as ended:  # a worker's comparing process ends with the worker

        def verifier_of(grpo: Grpo) -> Symbolic | None:
            found = verify.verifier_of(grpo)
            return found and ended.enter_context(found)

        monkeypatch.setattr(trainer, "verifier_of", verifier_of)
        do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0))
    _, *lines = (tmp_path / "difficulties.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert {(line["bad"], len(line["clusters"])) for line in map(json.loads, lines)} == {(bad, 1 + bad)}


def test_a_run_that_began_without_an_order_goes_on_without_one(tmp_path: Path) -> None:
    """Its difficulties are of another model, and the profile says to train all the same."""
    problems = write_problems(tmp_path / "sums.jsonl", sums(12))
    knobs = {"sent": Sent(enabled=True, samples=2, on_stale="shuffle")}
    trained(tmp_path / "other", plain_profile(problems, grpo=knobs))
    (tmp_path / "run").mkdir()
    measured = (tmp_path / "other" / "difficulties.jsonl").read_bytes()
    stale = measured.replace(json.loads(measured.splitlines()[0])["measured"]["model"].encode(), b"0" * 64)
    (tmp_path / "run" / "difficulties.jsonl").write_bytes(stale)
    end = checkpoint_of(trained(tmp_path / "run", plain_profile(problems, grpo=knobs), 1, 2, 3))
    assert "place" not in json.loads((tmp_path / "run" / end.path / "order.json").read_bytes())
    assert (tmp_path / "run" / "difficulties.jsonl").read_bytes() == stale
    refused = h.make_spec(
        tmp_path / "run",
        plain_profile(problems, grpo={"sent": Sent(enabled=True, samples=2)}),
        head=end,
        end_step=9,
        cycle=8,
    )
    assert "trained without stages" in do(refused).error
