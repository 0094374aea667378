"""Loads a model as its run does, then answers prompts one by one, streaming the text, until the input ends."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec
import torch

from workers.generate.conversation import Words
from workers.generate.decode import pick, tokens_after
from workers.line_contract import Completed, GenerateSpec, New, Piece, Prompt, Ready, Reason, Refused, Request, Stop
from workers.lines import Say
from workers.models.files import of_no_run
from workers.models.policy import Policy, open_policy, profile_for_reading, restored_policy
from workers.models.torch_setup import device_of, set_up_torch
from workers.rollout.engine import stop_ids_of
from workers.rollout.stopping import StopTexts


def answer_prompts(spec: GenerateSpec, say: Say) -> None:
    """Serve prompts until the input ends. Raises LonghaulError."""
    inbox = Inbox()
    with of_no_run(spec.directory) if spec.step is None else nullcontext():
        words = Words(spec.style, spec.profile, Path(spec.directory))
        policy = open_model(spec)
    answerer = Answerer(spec, policy, words, inbox, say)
    say(Ready(words.name, answerer.positions))
    while True:
        asked = inbox.lines.get()
        if isinstance(asked, New):
            words.forget()
        else:
            answerer.answer(asked.text, asked.seed)


class Inbox:
    """Reads standard input in a thread, so that a running completion can be stopped."""

    def __init__(self) -> None:
        self.lines: queue.Queue[Prompt | New] = queue.Queue()
        self.is_stopped = threading.Event()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            asked = msgspec.json.decode(line, type=Request)
            if isinstance(asked, Stop):
                self.is_stopped.set()
            else:
                self.lines.put(asked)
        os._exit(0)


class Answerer:
    """Completes prompts with one model."""

    def __init__(self, spec: GenerateSpec, policy: Policy, words: Words, inbox: Inbox, say: Say) -> None:
        self._spec, self._policy, self._words, self._inbox, self._say = spec, policy, words, inbox, say
        self._stops = StopTexts(policy.tokenizer.decode, words.stop, stop_ids_of(policy.model))
        self.positions = int(getattr(policy.model.config, "max_position_embeddings", 0) or 0)

    def answer(self, text: str, seed: int) -> None:
        """Stream the completion of one prompt, and report how it ended."""
        self._inbox.is_stopped.clear()
        ids = self._policy.tokenizer.encode_prompt(self._words.prompt(text))
        room = self.positions - len(ids) if self.positions else self._spec.max_new_tokens
        if not ids or room < 1:
            why = f"it has {len(ids)} tokens, and the model has {self.positions} positions" if ids else "it is empty"
            self._say(Refused(f"this prompt cannot be completed: {why}"))
            return
        began = time.monotonic()
        completion, reason = self._complete(ids, min(room, self._spec.max_new_tokens), seed)
        answer_ids = completion[:-1] if reason == "stop" else completion
        answer = self._policy.tokenizer.decode(answer_ids)
        self._words.heard(text, answer)
        self._say(Completed(answer, reason, len(completion), len(ids), round(time.monotonic() - began, 3)))

    def _complete(self, ids: tuple[int, ...], limit: int, seed: int) -> tuple[list[int], Reason]:
        spec, decode = self._spec, self._policy.tokenizer.stream()
        generator = torch.Generator().manual_seed(seed)
        choose = partial(pick, generator=generator, temperature=spec.temperature, top_k=spec.top_k, top_p=spec.top_p)
        completion: list[int] = []
        for token in tokens_after(self._policy.model, ids, limit, choose, self._inbox.is_stopped.is_set):
            completion.append(token)
            if token in self._stops.stop_ids:
                return completion, "stop"
            if piece := decode(token):
                self._say(Piece(piece))
            if self._stops.end_in(completion):
                return completion, "stop_text"
        return completion, "stopped" if self._inbox.is_stopped.is_set() else "length"


def open_model(spec: GenerateSpec) -> Policy:
    """The policy of a checkpoint, proven to be the saved one, or of a model directory."""
    profile = profile_for_reading(spec.profile, None if spec.step is not None else spec.directory)
    device = device_of(profile)
    set_up_torch(profile, isolate=False)
    if spec.step is None:
        return open_policy(profile, None, device)
    return restored_policy(profile, Path(spec.directory), spec.step, device)
