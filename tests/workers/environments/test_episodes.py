"""Episodes as rollouts: their tokens, their rewards, and the call at the end of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from profiles.errors import ExitCode, LonghaulError
from workers.environments.episodes import Episodes
from workers.environments.runner import EnvironmentRunner
from workers.rewards.episode import Played
from workers.rollout.conversation import by_rounds
from workers.rollout.engine import OnEnd, Request, Respond, Rollout, Sampling

CLASS = '''
class Steps:
    """Over after `steps` replies; each earns 1, and being cut short -5."""

    def reset(self, row):
        self.left = row["steps"]
        return [{"role": "user", "content": row.get("begin", "go")}]

    def step(self, messages, reply):
        if reply == "bad":
            raise ValueError("no such move")
        self.left -= 1
        return [{"role": "user", "content": "on"}], 1.0, self.left == 0

    def end(self, messages):
        return -5.0
'''


@dataclass(frozen=True)
class Limits:
    timeout_s: float = 20.0
    memory_gib: float = 2.0
    threads: int = 2


class Bytes:
    """A token is a byte; 0 ends a reply."""

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        return self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()


class Bare:
    """Texts as they are."""

    def opening(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return "".join(str(one["content"]) for one in messages)

    def following(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return "".join(str(one["content"]) for one in messages)


class Says:
    """An engine whose every reply is one text."""

    def __init__(self, reply: str = "ok") -> None:
        self._ids = (*reply.encode(), 0)

    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]:
        def generate(asked: Sequence[Request], how: Sampling) -> list[Rollout]:
            return [Rollout(one.prompt_ids, self._ids, (-0.5,) * len(self._ids), "stop") for one in asked]

        return by_rounds(generate, requests, sampling, respond, on_end)


@contextmanager
def playing(
    folder: Path, max_turns: int = 9, max_prompt_tokens: int = 20, on_error: Literal["stop", "skip"] = "stop"
) -> Iterator[Episodes]:
    (folder / "steps.py").write_text(CLASS)
    with EnvironmentRunner("steps.py:Steps", {}, Limits(), folder / "attempt", cwd=folder) as runner:
        yield Episodes(runner, Bare(), Bytes(), max_turns, max_prompt_tokens, on_error)


def rows(*steps: int) -> list[tuple[int, dict[str, Any]]]:
    return [(line, {"steps": count}) for line, count in enumerate(steps, start=1)]


HOW = Sampling(max_new_tokens=50)


def test_replies_and_answers_are_one_row_of_tokens_of_which_replies_are_the_models(tmp_path: Path) -> None:
    with playing(tmp_path) as episodes:
        (played,) = episodes.play(Says(), rows(2), [1], HOW)
    assert bytes(played.prompt_ids) == b"go" and bytes(played.completion_ids) == b"ok\x00onok\x00"
    assert played.is_own == (True,) * 3 + (False,) * 2 + (True,) * 3
    assert (played.earned, played.turns, played.reply, played.finish_reason) == (2.0, 2, "ok", "stop")
    assert [one["content"] for one in played.messages] == ["ok", "on", "ok"]


def test_each_episode_is_told_when_it_ends_while_longer_ones_go_on(tmp_path: Path) -> None:
    told: list[tuple[int, Played]] = []
    with playing(tmp_path) as episodes:
        found = episodes.play(Says(), rows(3, 1, 2), [1, 2, 3], HOW, lambda *one: told.append(one))
    assert [number for number, _ in told] == [1, 2, 0]
    assert all(found[number] == played for number, played in told)


def test_one_that_a_limit_cuts_short_is_told_with_its_last_reward(tmp_path: Path) -> None:
    told: dict[int, float] = {}
    with playing(tmp_path, max_turns=2) as episodes:
        found = episodes.play(Says(), rows(1, 5), [1, 2], HOW, lambda number, one: told.update({number: one.earned}))
    assert told == {0: 1.0, 1: -3.0} == {number: one.earned for number, one in enumerate(found)}


def test_one_without_room_for_another_reply_counts_as_cut(tmp_path: Path) -> None:
    with playing(tmp_path) as episodes:
        (played,) = episodes.play(Says(), rows(5), [1], Sampling(max_new_tokens=10))
    assert (played.finish_reason, played.turns, played.earned) == ("length", 2, -3.0)


def test_one_that_fails_is_left_out_or_ends_the_step(tmp_path: Path) -> None:
    with playing(tmp_path, on_error="skip") as episodes:
        (played,) = episodes.play(Says("bad"), rows(2), [1], HOW)
        assert "no such move" in played.failure
    with playing(tmp_path) as episodes, pytest.raises(LonghaulError, match="no such move") as told:
        episodes.play(Says("bad"), rows(2), [1], HOW)
    assert told.value.exit_code == ExitCode.REWARD


def test_first_messages_that_are_too_long_fail_before_the_model_is_asked(tmp_path: Path) -> None:
    with playing(tmp_path, max_prompt_tokens=3, on_error="skip") as episodes:
        long, short = episodes.play(Says(), [(1, {"steps": 1, "begin": "much too long"}), *rows(1)], [1, 2], HOW)
    assert "13 tokens, and at most 3" in long.failure and not short.failure and short.earned == 1.0


def test_what_goes_wrong_where_an_end_is_told_reaches_the_caller(tmp_path: Path) -> None:
    def broken(number: int, played: Played) -> None:
        raise RuntimeError("a bug of ours")

    with playing(tmp_path, max_turns=1) as episodes, pytest.raises(RuntimeError, match="a bug of ours"):
        episodes.play(Says(), rows(5), [1], HOW, broken)
