"""`explain`: each question that it answers, provoked by facts, and nothing said that the facts do not show."""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.commands import explain
from orchestrator.explaining import MOST, Facts, Sentence, explained
from profiles.load import from_json, load_profile, resolved_json
from profiles.schema import Profile
from state.history import (
    AnswerBits,
    AttemptFacts,
    CheckpointFacts,
    CycleFacts,
    History,
    StepFacts,
    ValidationCost,
    ValidationFacts,
)
from state.states import AttemptState, CycleState, RunState
from tests.builders import build_store

GRPO = load_profile("pocket-grpo", []).profile
HEAD = CheckpointFacts("c", None, 8, 80, "checkpoints/c", "d" * 64, 100, verified=True)
PROBLEMS = tuple(f"p{number}" for number in range(300))


def cycles_of(shares: Sequence[float], **more: Any) -> tuple[CycleFacts, ...]:
    """Validated cycles of ten steps; each problem is solved from a share on, so that answers stick to problems."""
    made = []
    for number, share in enumerate(shares, start=1):
        bits = AnswerBits(PROBLEMS, sum(1 << place for place in range(round(share * len(PROBLEMS)))))
        score = ValidationFacts(
            number, 10 * number, "words", share, round(share * 300), 300, {"mean": {"accuracy": share, "n": 300}},
            {"words": bits},
        )  # fmt: skip
        made.append(
            CycleFacts(
                number,
                "train",
                CycleState.COMMITTED,
                10 * number - 9,
                10 * number + 1,
                verdict="go:go",
                validations=(score,),
                **more,
            )
        )
    return tuple(made)


def step(number: int, seconds: float = 2.0, **metrics: float) -> StepFacts:
    return StepFacts(number, 8, seconds, {name.replace("__", "/"): value for name, value in metrics.items()})


def facts(*steps: StepFacts, profile: Profile = GRPO, pid: int | None = 42, **history: Any) -> Facts:
    known: dict[str, Any] = {"recent": cycles_of([0.1, 0.2, 0.3, 0.4]), "head": HEAD} | history
    whole = History("id", "night", known.pop("state", RunState.RUNNING), **known)
    newest = max([whole.step, *(one.step for one in steps)])
    return Facts(whole, profile, steps, newest, pid, 3.0)


def said(found: Facts, topic: str) -> str:
    """The one sentence of that topic; empty: there is none."""
    texts = [one.text for one in explained(found) if one.topic == topic]
    assert len(texts) <= 1
    return texts[0] if texts else ""


# --- does it live? ----------------------------------------------------------------------------------------------------


def test_a_living_run_names_its_master_and_its_last_sign() -> None:
    assert said(facts(step(81)), "alive") == "It runs: master 42 was last heard 3.0 s ago, in cycle 0, step 81."


def test_a_run_whose_master_was_killed_is_not_said_to_run() -> None:
    assert said(facts(pid=None), "alive").startswith("It does not run, and nobody ended it:")


def test_a_stopped_run_says_why() -> None:
    text = said(facts(pid=None, state=RunState.STOPPED, stop_reason="asked to stop"), "alive")
    assert text.startswith("It does not run: stopped (asked to stop);")


# --- does it learn? ---------------------------------------------------------------------------------------------------


def test_a_rise_beyond_noise_is_learning_and_has_its_interval() -> None:
    text = said(facts(), "learning")
    assert text.startswith("It learns: +30.0 points (95 %: ") and "the same 300 problems" in text


def test_three_cycles_are_too_few_to_tell() -> None:
    assert "3 of the 4 validated cycles" in said(facts(recent=cycles_of([0.1, 0.2, 0.3])), "learning")


def test_noise_is_not_called_learning() -> None:
    text = said(facts(recent=cycles_of([0.30, 0.31, 0.30, 0.31, 0.30])), "learning")
    assert text.startswith("No rise can be told from noise: ")


def test_accuracy_that_went_flat_names_the_step_since_when() -> None:
    text = said(facts(recent=cycles_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])), "learning")
    assert text.startswith("It learned, +") and "flat within noise since step 50: " in text


def test_a_steady_rise_is_never_called_flat_because_its_end_is_short() -> None:
    draw = random.Random(0)
    for _ in range(50):
        shares = [0.2 + 0.02 * number + draw.uniform(-0.01, 0.01) for number in range(12)]
        assert said(facts(recent=cycles_of(shares)), "learning").startswith("It learns: ")


def test_a_fall_is_said() -> None:
    assert said(facts(recent=cycles_of([0.5, 0.6, 0.6, 0.6, 0.2, 0.2, 0.2])), "learning").startswith("It gets worse: ")


def test_cycles_before_a_reseed_do_not_count() -> None:
    before, after = cycles_of([0.1, 0.2, 0.3, 0.4]), cycles_of([0.4, 0.5], reseed=1)
    later = [replace(one, cycle=one.cycle + 4) for one in after]
    assert "2 of the 4" in said(facts(recent=(*before, *later), current=later[-1]), "learning")


def test_the_rule_s_own_words_are_repeated() -> None:
    flat = cycles_of([0.3] * 12)
    last = replace(flat[-1], verdict="plateau:stop", evidence="no trend: +0.0 points")
    assert said(facts(recent=(*flat[:-1], last)), "rule") == (
        "The stagnation rule found plateau in cycle 12 (no trend: +0.0 points): stop."
    )
    assert "begins to judge in" in said(facts(recent=flat[:2]), "rule")
    assert said(facts(recent=flat), "rule").startswith(
        "The stagnation rule let cycle 12 pass; nearest is plateau, 50 % of the way: 12 of 24 validated cycles that a"
    )


# --- what is strange --------------------------------------------------------------------------------------------------


def test_a_loss_near_zero_is_normal_with_one_update() -> None:
    assert said(facts(step(81, loss=1e-7)), "loss").startswith("A loss near zero (1e-07) is normal")
    assert said(facts(step(81, loss=0.2)), "loss") == ""
    several = from_json(resolved_json(GRPO).replace(b'"updates_per_step":1', b'"updates_per_step":2').decode())
    assert said(facts(step(81, loss=1e-7), profile=several), "loss") == ""


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"all_right": 0.8, "all_wrong": 0.1}, "always right: take harder problems"),
        ({"all_right": 0.0, "all_wrong": 0.9, "truncated": 0.5}, "many are cut at the limit"),
        ({"all_right": 0.0, "all_wrong": 0.9, "answered": 0.2}, "no answer is found in 80 % of them"),
        ({"all_right": 0.0, "all_wrong": 0.9, "answered": 1.0}, "never right: take easier problems"),
    ],
)
def test_equal_rewards_have_their_likeliest_reason(metrics: dict[str, float], why: str) -> None:
    text = said(facts(step(81, uniform_share=0.9, **metrics)), "rewards")
    assert text.startswith("In 90 % of groups all rewards are equal") and why in text


def test_groups_that_differ_are_not_worth_a_sentence() -> None:
    assert said(facts(step(81, uniform_share=0.3)), "rewards") == ""


def test_cells_of_self_play_without_a_difference_are_said() -> None:
    assert said(facts(step(81, cell_degenerate=3.0)), "rewards").startswith("In 3 cells (task and role)")


def test_sampler_and_trainer_that_disagree_are_said_and_rounding_is_not() -> None:
    assert "disagree by 0.200 nats a token" in said(facts(step(81, mismatch_mean=0.2)), "mismatch")
    assert said(facts(step(81, mismatch_mean=0.01)), "mismatch") == ""


def test_cut_answers_name_the_limit() -> None:
    limit = GRPO.sampling.max_completion_tokens
    assert f"40 % of answers are cut at the limit of {limit} tokens" in said(facts(step(81, truncated=0.4)), "cut")
    assert said(facts(step(81, truncated=0.05)), "cut") == ""


def test_failures_have_the_last_one_s_words() -> None:
    failed = AttemptFacts(
        1, "train", 1, "t", AttemptState.FAILED, 1, 1, progressed=False, failure="OOM", message="CUDA out of memory"
    )
    text = said(facts(failures=(failed, failed)), "failures")
    assert text == "2 attempts failed since the last checkpoint, the last by OOM: CUDA out of memory."


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_largest_part_of_a_step_limits_the_speed() -> None:
    found = facts(
        step(81, seconds__rollout=1.4, seconds__update=0.5),
        step(82, seconds__rollout=1.4, seconds__update=0.5),
        validation_cost=ValidationCost(30.0, 300, 300),
        cycles_done=4,
        training_s=800.0,
    )
    assert said(found, "speed") == (
        "A step takes 2.0 s (median of 2), 70 % of it rollout and 25 % of it update: rollout limits the speed; "
        "a validation takes 30 s after 3 m 20 s of training."
    )


def test_memory_stands_beside_its_plan() -> None:
    gib = 2.0**30
    found = facts(
        step(81, memory__train__allocated=3 * gib, memory__train__expected=2 * gib, memory__load__allocated=1.0)
    )
    assert said(found, "memory") == "Memory is highest in train: 3.2 GB, planned 2.1 GB (+50 %)."


def test_what_a_crash_would_cost_is_counted_from_the_head() -> None:
    assert "cost nothing: step 80 is a durable" in said(facts(step(80)), "lost")
    assert "updates of 2 steps (4.0 s) since the checkpoint of step 80" in said(facts(step(81), step(82)), "lost")
    assert "no checkpoint yet" in said(facts(head=None), "lost")
    newest = facts(*(step(number) for number in range(181, 381)))  # the steps that `explain` reads
    assert "updates of 300 steps (10 m 00 s) since the checkpoint of step 80" in said(newest, "lost")


def test_the_last_sentence_is_what_to_type() -> None:
    assert explained(facts())[-1] == Sentence("next", "Next: python -m orchestrator top --run night")
    dead = explained(facts(pid=None))[-1].text
    assert dead == "Next: python -m orchestrator run --run night"
    assert explained(facts(pid=None, state=RunState.FINISHED))[-1].text.startswith(
        "Next: python -m orchestrator report"
    )


# --- as a whole -------------------------------------------------------------------------------------------------------

SHARES = st.floats(0, 1, allow_nan=False)


@given(
    st.lists(SHARES, max_size=12),
    st.dictionaries(
        st.sampled_from(["loss", "truncated", "uniform_share", "all_right", "all_wrong", "answered", "mismatch_mean"]),
        SHARES,
    ),
    st.sampled_from(RunState),
    st.booleans(),
)
def test_never_more_than_ten_sentences_and_what_is_strange_comes_before_costs(
    shares: list[float], metrics: dict[str, float], state: RunState, is_alive: bool
) -> None:
    found = explained(facts(step(81, **metrics), recent=cycles_of(shares), state=state, pid=7 if is_alive else None))
    topics = [one.topic for one in found]
    assert len(found) <= MOST and topics[0] == "alive" and topics[-1] == "next"
    assert len(topics) == len(set(topics))
    assert all(text.endswith(".") and "\n" not in text for text in (one.text for one in found[:-1]))


def test_it_explains_a_store_and_a_hostile_text_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = build_store(tmp_path / "night", cycles=6, steps=120)
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE runs SET stop_reason=?", ["\x1b[2Jgone"])
    where = argparse.Namespace(runs=tmp_path, run=None, json=False)
    assert explain.run(where) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and f"--runs {tmp_path}" in text.splitlines()[-1]
    explain.run(argparse.Namespace(runs=tmp_path, run=None, json=True))
    topics = [one["topic"] for one in json.loads(capsys.readouterr().out)]
    assert topics[0] == "alive" and "learning" in topics and topics[-1] == "next"
