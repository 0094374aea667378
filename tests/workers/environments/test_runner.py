"""Environments in a process of their own: what they are given, and that nothing they do harms anybody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode, LonghaulError
from workers.environments.runner import LOG, EnvironmentRunner, Stepped
from workers.user_code.frames import LOG_BYTES

GAME = """
import asyncio, os, sys, time, threading
from pathlib import Path

def user(text):
    return {"role": "user", "content": text}

class Game:
    stop = ["="]
    def __init__(self, most=3):
        self.most = most
    @staticmethod
    def rows():
        for number in range(4):
            yield {"number": number, "prompt": f"row {number}"}
    def reset(self, row):
        self.row, self.count = row, 0
        return [user(row["prompt"])]
    def step(self, messages, reply):
        assert messages[-1] == {"role": "assistant", "content": reply}
        self.count += 1
        if reply == "mutate":
            messages.clear(); self.row.clear()
        if reply == "raise":
            raise ValueError("no such move")
        if reply == "exit":
            sys.exit(3)
        if reply == "die":
            os._exit(7)
        if reply == "fork" and os.fork() == 0:
            return [user("from the child")], 1.0, False
        if reply == "print":
            print("x" * (1 << 21))
        if reply == "hang":
            time.sleep(3600)
        if reply == "spin":
            sum(1 for _ in iter(int, 1))
        if reply == "eat":
            bytearray(1 << 34)
        if reply in ANSWERS:
            return ANSWERS[reply]
        return [user(f"{len(messages)}: {reply}")], 0.25, self.count == self.most
    def end(self, messages):
        return -float(len(messages))

class Slow:
    async def reset(self, row):
        await asyncio.sleep(0.01)
        return [user("go")]
    async def step(self, messages, reply):
        if reply == "block":
            time.sleep(3600)
        await asyncio.sleep(0.01)
        return [user(reply)], 1, False

class Fickle(Game):
    def reset(self, row):
        self.count = 0
        return [user(str(time.monotonic_ns()))]

ANSWERS = {
    "none": None, "pair": ([], 1.0), "text": ("hello", 0.0, False), "nan": ([user("a")], float("nan"), False),
    "string": ([user("a")], "good", False), "role": ([{"role": "assistant", "content": "a"}], 0.0, False),
    "content": ([{"role": "user", "content": 3}], 0.0, False), "silent": ([], 0.0, False),
    "over": ([], 1.0, "no"), "half": ([user("\\ud800")], 0.0, False),
}
NOT_ONE = 3
def empty(): pass
class NoStep:
    def reset(self, row): return [user("a")]
class Empty(Game):
    def reset(self, row): return []
class Needs(Game):
    def reset(self, row): return [user(row["question"])]
"""
ROW = {"prompt": "Play.", "number": 1}


@dataclass
class Limits:
    timeout_s: float = 30.0
    memory_gib: float = 2.0
    threads: int = 8


@contextmanager
def running(
    folder: Path, name: str = "Game", limits: Limits | None = None, text: str = GAME, **options: Any
) -> Iterator[EnvironmentRunner]:
    (folder / "game.py").write_text(text, encoding="utf-8", errors="surrogatepass")
    with EnvironmentRunner(f"game.py:{name}", options, limits or Limits(), folder / "attempt", cwd=folder) as found:
        yield found


def opened(runner: EnvironmentRunner, row: dict[str, Any] | None = None) -> int:
    return runner.open(row or ROW, 5).result().episode


def refused(future: Future[Any]) -> str:
    with pytest.raises(LonghaulError) as caught:
        future.result()
    assert caught.value.exit_code == ExitCode.REWARD
    return caught.value.what


def test_an_episode_is_played_with_what_its_protocol_says(tmp_path: Path) -> None:
    with running(tmp_path, most=2) as runner:
        assert runner.stop == ("=",)
        rows = runner.rows()
        assert rows is not None and [one["number"] for one in rows] == [0, 1, 2, 3]
        first = runner.open(rows[2]).result()
        assert first.messages == [{"role": "user", "content": "row 2"}]
        assert runner.step(first.episode, "one").result() == _stepped("2: one", 0.25)
        last = runner.step(first.episode, "two").result()
        assert (last.is_over, last.messages, last.reward) == (True, [], 0.25)
        second = opened(runner)
        runner.step(second, "one").result()
        assert runner.end(second).result() == -3.0
        mutated = opened(runner)
        assert runner.step(mutated, "mutate").result().messages[0]["content"] == "0: mutate"
        assert runner.step(mutated, "again").result().is_over, "what it was given is a copy"


def _stepped(text: str, reward: float) -> Any:
    class Like:
        def __eq__(self, other: object) -> bool:
            assert isinstance(other, Stepped)
            return (other.messages, other.reward, other.is_over) == ([{"role": "user", "content": text}], reward, False)

        __hash__ = None  # type: ignore[assignment]

    return Like()


def test_episodes_that_are_coroutines_wait_side_by_side(tmp_path: Path) -> None:
    with running(tmp_path, "Slow") as runner:
        assert runner.rows() is None and runner.stop == ()
        numbers = [one.result().episode for one in [runner.open(ROW) for _ in range(40)]]
        found = [one.result() for one in [runner.step(number, "a") for number in numbers]]
        assert all(one.reward == 1.0 for one in found)
        assert runner.end(numbers[0]).result() == 0.0, "without a method `end`"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("raise", "it raised ValueError: no such move"),
        ("exit", "it called exit(3)"),
        ("die", "its process ended with exit code 7"),
        ("eat", "MemoryError: the environment may have 2 GiB"),
        ("none", "step returned None; (messages, reward, is over) was expected"),
        ("pair", "(messages, reward, is over) was expected"),
        ("text", "'hello' (str) where a list of messages was expected"),
        ("nan", "a reward must be finite"),
        ("string", "'good' (str), not a number"),
        ("role", "message 1 has the role 'assistant' (str); possible are system, user, tool"),
        ("content", "message 1 has the content 3 (int); a text was expected"),
        ("silent", "step returned no text although the episode is not over"),
        ("over", "'no' (str) for whether it is over"),
        ("half", "message 1 has a lone surrogate character"),
    ],
)
def test_a_step_that_fails_names_the_row_and_keeps_what_it_was_given(tmp_path: Path, reply: str, why: str) -> None:
    with running(tmp_path) as runner:
        bad, good = opened(runner), opened(runner)
        runner.step(good, "one").result()
        said = refused(runner.step(bad, reply))
        assert why in said and "in an episode of row 5 of the data" in said
        (file,) = (tmp_path / "attempt/failed-rewards").iterdir()
        kept = json.loads(file.read_bytes())
        assert kept["call"]["reply"] == reply and kept["call"]["story"]["row"] == ROW
        assert runner.step(good, "two").result() == _stepped("4: two", 0.25), "the episode beside it goes on"


def test_what_an_environment_prints_and_forks_disturbs_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as runner:
        number = opened(runner)
        assert runner.step(number, "print").result().reward == 0.25
        assert runner.step(number, "fork").result().messages[0]["content"] == "4: fork"
    assert (tmp_path / "attempt" / LOG).stat().st_size <= 2 * LOG_BYTES
    assert not psutil.Process().children(recursive=True)


@pytest.mark.parametrize(("name", "reply"), [("Game", "hang"), ("Game", "spin"), ("Slow", "block")])
def test_a_step_that_never_returns_fails_alone_and_the_others_are_played_again(
    tmp_path: Path, name: str, reply: str
) -> None:
    with running(tmp_path, name, Limits(timeout_s=2.0)) as runner:
        good = opened(runner)
        before = runner.step(good, "one").result()
        bad = opened(runner)
        assert "took longer than 2 s (grpo.reward.timeout_s)" in refused(runner.step(bad, reply))
        after = runner.step(good, "two").result()
        assert (before.reward, after.reward) in ((0.25, 0.25), (1.0, 1.0))
        assert after.messages[0]["content"] in ("4: two", "two")


def test_an_episode_that_says_other_things_the_second_time_is_not_played_again(tmp_path: Path) -> None:
    with running(tmp_path, "Fickle", Limits(timeout_s=2.0)) as runner:
        good, bad = opened(runner), opened(runner)
        runner.step(good, "one").result()
        refused(runner.step(bad, "die"))
        assert "cannot be played again" in refused(runner.step(good, "two"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Missing", "there is no class Missing"),
        ("NOT_ONE", "there is no class NOT_ONE"),
        ("NoStep", "the class NoStep has no method step"),
    ],
)
def test_what_is_no_environment_is_refused_before_anything_starts(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(LonghaulError, match=why) as caught, running(tmp_path, name):
        pass
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("class Game:\n  def reset(", "a syntax error in .* line 2"),
        ("import nothing_like_this", "ModuleNotFoundError"),
        ("import os; os._exit(4)", "the process ended with exit code 4 while it imported the file"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(LonghaulError, match=why) as caught, running(tmp_path, text=text):
        pass
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Empty", "reset returned no text"),
        ("Needs", "it raised KeyError: 'question'"),
        ("empty", "it raised AttributeError"),
    ],
)
def test_a_reset_that_fails_names_its_row(tmp_path: Path, name: str, why: str) -> None:
    with running(tmp_path, name) as runner:
        said = refused(runner.open(ROW, 5))
        assert why in said and "row 5" in said


def test_an_option_that_the_class_does_not_take_names_it(tmp_path: Path) -> None:
    with running(tmp_path, least=1) as runner:
        assert "unexpected keyword argument 'least'" in refused(runner.open(ROW, 5))


def test_answers_may_be_heard_on_any_thread_and_close_ends_what_waits(tmp_path: Path) -> None:
    heard = threading.Event()
    with running(tmp_path) as runner:
        runner.step(opened(runner), "hang").add_done_callback(lambda _: heard.set())
    assert heard.wait(10)
