"""Environments of the library verifiers, as they are: made here with the library, and played in their own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from tests import REPOSITORY
from tests.workers.environments.test_runner import Limits, refused
from workers.environments import registry
from workers.environments.runner import EnvironmentRunner

needs_library = pytest.mark.skipif(find_spec("verifiers") is None, reason="the extra verifiers is not installed")
OWN = '''
import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]

def last(completion):
    return completion[-1].content or ""

async def right(completion, answer):
    return 1.0 if last(completion).strip() == answer else 0.0

async def wrong(completion):
    raise ValueError("no judge today")

class Coach(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if messages[-1].content == "give up":
            raise vf.Error("gave up")
        if messages[-1].content == "secret":
            state["final_env_response"] = [{"role": "user", "content": "well done"}]
        return [{"role": "user", "content": f"again, after {messages[-1].content}"}]

class Forgetful(Coach):
    async def get_prompt_messages(self, state):
        found = await super().get_prompt_messages(state)
        return found[-1:] if state["trajectory"] else found

def double(x: int) -> int:
    """Twice a number.

    Args:
        x: the number
    """
    return 2 * x

def echo(text: str) -> str:
    """The same text.

    Args:
        text: any
    """
    return text

def load_environment(kind="single", **options):
    data = Dataset.from_list(ROWS)
    rubric = vf.Rubric(funcs=[wrong if kind == "broken" else right])
    if kind in ("single", "broken"):
        return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Be brief.", **options)
    if kind == "tools":
        return vf.ToolEnv(dataset=data, rubric=rubric, tools=[double, echo], **options)
    return (Forgetful if kind == "forgetful" else Coach)(dataset=data, rubric=rubric, **options)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_sums.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path


def playing(folder: Path, **options: object) -> EnvironmentRunner:
    return EnvironmentRunner("verifiers:own-sums", options, Limits(timeout_s=60.0), folder / "attempt", cwd=folder)


@needs_library
def test_a_single_turn_environment_brings_rows_and_judges_by_its_rubric(own: Path) -> None:
    with playing(own) as runner:
        rows = runner.rows()
        assert rows is not None and len(rows) == 4
        row = {"messages": rows[2]["prompt"], **rows[2]}
        for reply, reward in (("3", 1.0), ("4", 0.0)):
            first = runner.open(row).result()
            assert [one["role"] for one in first.messages] == ["system", "user"]
            assert first.messages[1]["content"] == "2 + 1?"
            last = runner.step(first.episode, reply).result()
            assert (last.is_over, last.reward) == (True, reward)


@needs_library
def test_a_multi_turn_environment_answers_until_it_ends(own: Path) -> None:
    with playing(own, kind="coach", max_turns=3) as runner:
        row = {"prompt": "5 + 1?", "answer": "6"}
        first = runner.open(row).result().episode
        assert runner.step(first, "no").result().messages == [{"role": "user", "content": "again, after no"}]
        assert runner.step(first, "4").result().messages == [{"role": "user", "content": "again, after 4"}]
        last = runner.step(first, "6").result()
        assert (last.is_over, last.reward) == (True, 1.0), "its own most turns"
        told = runner.open(row).result().episode
        assert runner.step(told, "secret").result().is_over, "an answer that needs no reply"
        gone = runner.open(row).result().episode
        assert "gave up" in refused(runner.step(gone, "give up"))


@needs_library
def test_an_environment_that_never_ends_is_judged_where_a_limit_cuts_it(own: Path) -> None:
    with playing(own, kind="coach") as runner:
        number = runner.open({"prompt": "5 + 1?", "answer": "6"}).result().episode
        for _ in range(5):
            assert not runner.step(number, "6").result().is_over
        assert runner.end(number).result() == 1.0


@needs_library
def test_tools_are_shown_and_called_and_a_call_that_is_no_json_is_said_so(own: Path) -> None:
    with playing(own, kind="tools") as runner:
        first = runner.open({"prompt": "Twice 4?", "answer": "8"}).result()
        assert first.tools[0]["function"]["name"] == "double"
        assert first.tools[0]["function"]["parameters"]["properties"]["x"]["type"] == "integer"
        asked = '<tool_call>{"name": "double", "arguments": {"x": 4}}</tool_call>'
        (said,) = runner.step(first.episode, asked).result().messages
        assert (said["role"], said["content"]) == ("tool", "8")
        (torn,) = runner.step(first.episode, "<tool_call>double(4)</tool_call>").result().messages
        assert torn["role"] == "tool" and torn["content"]
        for text, shown in (("", "(no text)"), (r"\ud800", "?")):
            odd = f'<tool_call>{{"name": "echo", "arguments": {{"text": "{text}"}}}}</tool_call>'
            assert [one["content"] for one in runner.step(first.episode, odd).result().messages] == [shown]
        last = runner.step(first.episode, "8").result()
        assert (last.is_over, last.reward) == (True, 1.0)


@needs_library
def test_an_environment_that_rewrites_what_was_said_is_refused_in_words(own: Path) -> None:
    with playing(own, kind="forgetful") as runner:
        number = runner.open({"prompt": "5 + 1?", "answer": "6"}).result().episode
        assert "changes messages of earlier turns" in refused(runner.step(number, "no"))


@needs_library
def test_one_that_is_not_installed_is_refused_with_its_name(tmp_path: Path) -> None:
    runner = EnvironmentRunner("verifiers:no-such", {}, Limits(), tmp_path)
    with pytest.raises(LonghaulError, match="Could not import 'no-such' environment") as caught, runner:
        pass
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize("found", ["", "0.1.14", "0.4.0"])
def test_a_library_that_is_missing_or_of_another_version_is_refused(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(name: str) -> str:
        if not found:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(registry, "version", other)
    with pytest.raises(LonghaulError, match=found or "not installed") as caught:
        EnvironmentRunner("verifiers:own-sums", {}, Limits(), tmp_path)
    assert caught.value.exit_code == ExitCode.INPUT and "verifiers>=0.2,<0.4" in caught.value.next_command
    monkeypatch.setattr(registry, "version", version)


@needs_library
@pytest.mark.slow
def test_a_run_trains_on_it_and_validates(own: Path) -> None:
    """With the rows that the environment brings, and the built-in words model."""
    settings = (
        "data.tasks=", "data.held_out=0.5", 'grpo.rewards=["environment"]', "grpo.environment.name=verifiers:own-sums",
        'validation.suites=["held-out"]', "run.max_cycles=1", "run.steps_per_cycle=1",
        "run.checkpoint_every=1", "grpo.groups_per_step=1", "grpo.group_size=4", "grpo.variants.random_rewards=true",
    )  # fmt: skip
    options = [word for one in settings for word in ("--set", one)]
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "pocket-grpo", *options]
    done = subprocess.run(
        command, cwd=own, env=os.environ | {"PYTHONPATH": f"{own}:{REPOSITORY}"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the one cycle is done" in done.stdout and "problems: " in done.stdout
    assert "step 1 " in done.stdout and "mean greedy" in done.stdout
