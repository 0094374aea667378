"""Plays episodes: what an environment says as tokens, a model's replies as text, and what each episode earned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from workers.rewards.episode import Message, Played
from workers.rollout.engine import OnEnd, Request, Respond, Rollout, Sampling

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner, Opened, Stepped


class Converser(Protocol):
    """A rank's engine, or that of all ranks together."""

    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]: ...


class Renderer(Protocol):
    """Turns messages into text: an answer format."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str: ...

    def following(self, messages: Sequence[Message]) -> str: ...


class Encoder(Protocol):
    def encode_prompt(self, text: str) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class _Episode:
    """One episode while it is played."""

    number: int = -1
    """The environment's; -1: it could not be opened."""
    prompt: tuple[int, ...] = ()
    earned: float = 0.0
    turns: int = 0
    messages: list[Message] = field(default_factory=list)
    read: int = 0
    """Ids of the completion that belong to earlier turns."""
    is_over: bool = False
    error: LonghaulError | None = None

    @property
    def is_cut(self) -> bool:
        """Whether a limit ended it, and not the environment."""
        return self.error is None and not self.is_over


def episodes_of(profile: Profile, runner: EnvironmentRunner, renderer: Renderer, tokenizer: Encoder) -> Episodes:
    """The episodes of a run. runner: entered."""
    grpo = profile.grpo
    return Episodes(
        runner,
        renderer,
        tokenizer,
        grpo.environment.max_turns,
        profile.sampling.max_prompt_tokens,
        grpo.reward.on_error,
    )


@dataclass(frozen=True)
class Episodes:
    """Plays episodes of one environment. on_error: whether one that fails ends the step, or is left out of it."""

    runner: EnvironmentRunner
    renderer: Renderer
    tokenizer: Encoder
    max_turns: int
    max_prompt_tokens: int
    on_error: Literal["stop", "skip"] = "stop"

    def play(
        self,
        engine: Converser,
        rows: Sequence[tuple[int, Mapping[str, Any]]],
        seeds: Sequence[int],
        sampling: Sampling,
        on_end: Callable[[int, Played], None] | None = None,
    ) -> list[Played]:
        """An episode for each row (with its line) and seed, in order.

        `sampling.max_new_tokens` bounds all that follows the prompt. on_end: called with each episode that began, when
        it ends, from any thread. All calls have returned before this does.
        Raises LonghaulError (REWARD) for an environment that fails, if that ends the step.
        """
        episodes = [self._begun(one) for one in [self.runner.open(row, line) for line, row in rows]]
        able = [place for place, one in enumerate(episodes) if one.error is None]
        how = replace(sampling, stop=(*sampling.stop, *self.runner.stop))
        done: dict[int, Future[Played]] = {place: Future() for place in able}

        def respond(number: int, so_far: Rollout) -> Future[tuple[int, ...]]:
            return self._respond(episodes[able[number]], so_far)

        def ended(number: int, rollout: Rollout) -> None:
            place = able[number]
            one = episodes[place]
            if one.is_cut:
                self.runner.end(one.number).add_done_callback(lambda last: finish(place, rollout, last))
            else:
                finish(place, rollout)

        def finish(place: int, rollout: Rollout, last: Future[float] | None = None) -> None:
            one = episodes[place]
            try:
                if last is not None:
                    self._hear_last(one, last)
                played = self._played(one, rollout)
                if on_end is not None:
                    on_end(place, played)
                done[place].set_result(played)
            except BaseException as error:  # in a thread of the runner nobody else would hear of it
                done[place].set_exception(error)

        if able:
            engine.converse([Request(episodes[place].prompt, seeds[place]) for place in able], how, respond, ended)
        nothing = Rollout((), (), (), "length")
        return [
            done[place].result() if place in done else self._played(one, nothing) for place, one in enumerate(episodes)
        ]

    def _hear_last(self, one: _Episode, last: Future[float]) -> None:
        """What an episode that a limit cut short earned last."""
        try:
            one.earned += last.result()
        except LonghaulError as error:
            self._fail(one, error)

    def _begun(self, opened: Future[Opened]) -> _Episode:
        one = _Episode()
        try:
            found = opened.result()
        except LonghaulError as error:
            self._fail(one, error)
            return one
        one.number = found.episode
        one.prompt = self.tokenizer.encode_prompt(self.renderer.opening(found.messages, found.tools))
        if not one.prompt or len(one.prompt) > self.max_prompt_tokens:
            self.runner.end(one.number)
            self._fail(one, _not_askable(len(one.prompt), self.max_prompt_tokens))
        return one

    def _respond(self, one: _Episode, so_far: Rollout) -> Future[tuple[int, ...]]:
        """What the environment answers to the last reply, as ids; none if the episode is over."""
        answer: Future[tuple[int, ...]] = Future()
        reply = self._text(so_far, one.read)
        one.messages.append({"role": "assistant", "content": reply})

        def hear(stepped: Future[Stepped]) -> None:
            try:
                answer.set_result(self._heard(one, so_far, stepped.result()))
            except LonghaulError as error:
                one.error = error
                if self.on_error == "stop":
                    answer.set_exception(error)
                else:
                    answer.set_result(())
            except BaseException as error:  # a bug of ours: the engine must not wait for ever
                answer.set_exception(error)

        self.runner.step(one.number, reply).add_done_callback(hear)
        return answer

    def _heard(self, one: _Episode, so_far: Rollout, found: Stepped) -> tuple[int, ...]:
        one.earned += found.reward
        one.turns += 1
        one.is_over = found.is_over
        if found.is_over or one.turns == self.max_turns:
            return ()
        one.messages += found.messages
        ids = self.tokenizer.encode(self.renderer.following(found.messages))
        if so_far.finish_reason == "stop" and ids[:1] == so_far.completion_ids[-1:]:
            ids = ids[1:]  # the model has ended its turn itself
        one.read = len(so_far.completion_ids) + len(ids)
        return ids

    def _text(self, so_far: Rollout, begin: int) -> str:
        """The ids from `begin` on, without the stop token."""
        return self.tokenizer.decode(so_far.completion_ids[begin : -1 if so_far.finish_reason == "stop" else None])

    def _fail(self, one: _Episode, error: LonghaulError) -> None:
        if self.on_error == "stop":
            raise error
        one.error = error

    def _played(self, one: _Episode, rollout: Rollout) -> Played:
        if len(rollout.completion_ids) > one.read and rollout.finish_reason == "length":  # cut, so nobody heard it
            one.messages.append({"role": "assistant", "content": self._text(rollout, one.read)})
            one.turns += 1
        replies = [str(message["content"]) for message in one.messages if message["role"] == "assistant"]
        return Played(
            prompt_ids=rollout.prompt_ids or one.prompt,
            completion_ids=rollout.completion_ids,
            log_probs=rollout.log_probs,
            finish_reason=rollout.finish_reason,
            entropies=rollout.entropies,
            is_own=rollout.is_own,
            earned=one.earned,
            reply=replies[-1] if replies else "",
            messages=tuple(one.messages),
            turns=one.turns,
            failure=one.error.what if one.error else "",
        )


def _not_askable(tokens: int, most: int) -> LonghaulError:
    return LonghaulError(
        f"the environment's first messages have {tokens} tokens, and at most {most} are allowed"
        if tokens
        else "the environment's first messages hold no text",
        kept="the head, and the rollouts of finished steps",
        next_command="the same command with --set sampling.max_prompt_tokens=...   (or correct the environment)",
        exit_code=ExitCode.REWARD,
    )
