"""An engine whose log-probs are far from the trainer's is not trusted for long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.workers.grpo.small import advantages_of, profile_of, rows_of, tiny_model, update_of
from workers.grpo.old_source import OldSource, is_far_off
from workers.grpo.prepare import weight_cap
from workers.grpo.rows import Row


@pytest.mark.parametrize(
    ("mean", "largest", "expected"),
    [(0.0, 0.0, False), (0.05, 2.0, False), (0.051, 0.3, True), (0.01, 2.01, True)],
)
def test_an_engine_is_far_off_in_the_mean_or_in_one_token(mean: float, largest: float, expected: bool) -> None:
    assert is_far_off(mean, largest) is expected


def stale(rows: list[Row], by: float) -> list[Row]:
    return [replace(row, log_probs=tuple(value - by for value in row.log_probs)) for row in rows]


@pytest.mark.parametrize(("by", "is_distrusted"), [(0.0, False), (0.2, True)])
def test_it_is_found_at_the_first_update_of_a_step(by: float, is_distrusted: bool) -> None:
    model, profile = tiny_model(), profile_of({"updates_per_step": 2}, old_source="rollout", inner_epochs=2)
    update, rows = update_of(model, profile), rows_of(model)
    update.apply(1, 1e-2, stale(rows, by), advantages_of(rows, profile))  # the second update moves the ratios itself
    assert update.source.is_distrusted is is_distrusted
    assert update.source.now == ("trainer" if is_distrusted else "rollout")


def test_from_then_on_the_trainer_scores_the_rollouts_and_weighs_them() -> None:
    model, profile = tiny_model(), profile_of(old_source="rollout")
    update, rows = update_of(model, profile), rows_of(model)
    found: list[dict[str, Any]] = []
    for step in (1, 2):
        found.append(update.apply(step, 0.0, stale(rows, 0.2), advantages_of(rows, profile))[1])
    assert "tis_weight" not in found[0]
    assert found[1]["tis_weight"] == pytest.approx(1.2214, abs=1e-3)  # e to the 0.2
    assert found[1]["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert found[1]["mismatch_mean"] == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize("wanted", ["trainer", "rollout"])
def test_without_importance_sampling_the_trainer_s_own_numbers_have_no_weights(wanted: Any) -> None:
    """`tis_cap = 0` is off, also where an engine is found far off."""
    model, profile = tiny_model(), profile_of({"tis_cap": 0.0}, old_source=wanted)
    update, rows = update_of(model, profile), rows_of(model)
    for step in (1, 2):
        metrics = update.apply(step, 0.0, stale(rows, 0.2), advantages_of(rows, profile))[1]
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch_mean"] == pytest.approx(0.2, abs=1e-4)
    assert "tis_weight" not in metrics


@pytest.mark.parametrize(("mode", "cap"), [("token_truncate", 2.0), ("token_mask", 2.0), ("sequence_mask", 3.0)])
def test_the_cap_that_is_left_open_is_that_of_its_mode(mode: Any, cap: float) -> None:
    assert weight_cap(profile_of(tis_mode=mode)) == cap
    assert weight_cap(profile_of({"tis_cap": 5.0}, tis_mode=mode)) == 5.0


def test_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    first, second = (OldSource(profile_of(old_source="rollout")) for _ in range(2))
    first.look(1.0, 1.0)
    first.save(tmp_path / "old")
    second.load(tmp_path / "old")
    assert second.now == "trainer"


@pytest.mark.parametrize("wanted", ["trainer", "detach"])
def test_where_the_engine_is_not_believed_anyway_nothing_changes(wanted: Any) -> None:
    source = OldSource(profile_of(old_source=wanted))
    source.look(9.0, 9.0)
    assert source.now == wanted and not source.is_distrusted
