"""The final summary of a run: its result, why it ended, and the next command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from orchestrator.display.summary import next_command, summary
from orchestrator.exactness import exactness
from profiles.schema import Run
from state.states import RunState
from tests.builders import a_history, a_profile, step_facts, validation_facts


def test_start_and_end_stand_side_by_side_with_their_intervals() -> None:
    history = a_history(state=RunState.FINISHED, stop_reason="all 12 cycles are done", cycles_done=12)
    validations = [validation_facts(0), validation_facts(60), validation_facts(240)]
    lines = summary(history, [step_facts(50)], validations, a_profile()).splitlines()
    assert lines[0] == "run 'night' (profile pocket): finished, all 12 cycles are done"
    assert "  deduction        0.230 [0.19, 0.28]      0.760 [0.71, 0.80]      +53" in lines
    assert "  induction        0.250 [0.20, 0.30]      0.250 [0.20, 0.30]      ±0  (within noise)" in lines
    assert "  mean             0.307 [0.28, 0.34]      0.590 [0.56, 0.62]      +28" in lines
    assert "  sampled 0.200 -> 0.400, worked answers 10 % -> 63 %, length 8 -> 23 tokens" in lines
    assert "trained    1 m 15 s: 50 steps in 12 cycles" in lines
    assert "found      1,240 distinct tasks" in lines
    assert "report     runs/night/report.html" in lines
    assert lines[-1] == "next       python -m orchestrator status --run night"


def test_a_run_that_was_never_validated_says_so() -> None:
    text = summary(a_history(first_validation=None, head=None), [], [], a_profile())
    assert "no checkpoint was validated yet" in text
    assert "no checkpoint yet" in text


def test_a_single_validation_claims_no_change() -> None:
    text = summary(a_history(), [], [validation_facts(0)], a_profile())
    assert "±0" not in text and "noise" not in text


def test_steps_beyond_the_head_are_told() -> None:
    text = summary(a_history(state=RunState.STOPPED), [step_facts(53)], [], a_profile())
    assert "repeated   3 steps beyond the head will be trained again, from the same rollouts" in text


def test_another_engine_repeats_them_with_new_rollouts() -> None:
    profile = replace(a_profile(), run=Run(worker="open_instruct"))
    assert "again, with new rollouts" in summary(a_history(state=RunState.STOPPED), [step_facts(53)], [], profile)


def test_the_reason_is_made_harmless() -> None:
    assert "␛[2J" in summary(a_history(stop_reason="\x1b[2J"), [], [], a_profile())


@pytest.mark.parametrize(
    ("state", "command"),
    [(RunState.STOPPED, "run"), (RunState.FAILED, "run"), (RunState.RUNNING, "top"), (RunState.STAGNANT, "status")],
)
def test_the_next_command(state, command) -> None:
    assert next_command(a_history(state=state), a_profile()) == f"python -m orchestrator {command} --run night"


def test_a_run_that_was_to_be_seeded_alone_goes_on_with_the_whole_pipeline_once_that_is_done() -> None:
    alone = replace(a_profile(), run=Run(phases=("seed",)))
    found = [next_command(a_history(state=RunState.STOPPED, **more), alone) for more in ({}, {"head": None})]
    assert found == [f"python -m orchestrator run --run night{more}" for more in (" --full-pipeline", "")]


def test_rollouts_of_vllm_are_not_repeated_bit_for_bit() -> None:
    assert exactness({"sampling": {"engine": "vllm"}}, [])[0] == "state-exact"
    assert exactness({"sampling": {"engine": "native"}}, [])[0] == "bit-exact"


VERSIONS = {"torch": "2.13.0", "machine": "x86_64"}


@pytest.mark.parametrize(
    ("deterministic", "versions", "kind", "why"),
    [
        pytest.param(True, [VERSIONS, VERSIONS], "bit-exact", "deterministic is true", id="nothing changed"),
        pytest.param(True, [], "bit-exact", "deterministic is true", id="not started yet"),
        pytest.param(False, [], "state-exact", "deterministic is false", id="kernels may differ"),
        pytest.param(
            True, [VERSIONS, {**VERSIONS, "torch": "2.14.0"}], "state-exact", "torch 2.13.0 -> 2.14.0", id="upgraded"
        ),
        pytest.param(True, [VERSIONS, {"torch": "2.13.0"}], "state-exact", "machine x86_64 -> none", id="moved"),
    ],
)
def test_what_a_resume_would_repeat(deterministic, versions, kind, why) -> None:
    told, reason = exactness({"run": {"deterministic": deterministic}}, versions)
    assert told == kind
    assert why in reason
