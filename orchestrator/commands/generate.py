"""Complete a prompt, or chat, with a checkpoint or a model directory; the text is streamed.

Without --prompt or --interactive, reads the prompt from standard input. Ctrl+C ends a completion and keeps its text so
far; a second Ctrl+C, or one at the prompt, ends the command. A run may be training meanwhile. See docs/using.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec.structs import replace

from orchestrator.display.wording import harmless_lines, not_text
from orchestrator.evaluation.target import Chosen, choose_checkpoint, choose_model
from orchestrator.line_worker import LineWorker, started
from orchestrator.reading import held
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import Completed, GenerateSpec, New, Piece, Prompt, Ready, Refused, Stop

KEPT = "everything; this command writes nothing"
HELP = "each line is a prompt; /new forgets the conversation, /quit or Ctrl+D ends"
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the prompt to complete")
    what.add_argument("--interactive", action="store_true", help=f"prompt after prompt: {HELP}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--checkpoint", default="latest", metavar="WHICH", help="latest, best, a step, a path (latest)")
    which.add_argument("--model", metavar="DIR", help="a Hugging Face model directory instead, or a built-in model")
    parser.add_argument(
        "--style",
        choices=("auto", "run", "chat", "raw"),
        default="auto",
        help="run: the run's prompt style; chat: the model's chat template; raw: the text as it is",
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="sampling temperature; 0 is greedy (1)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="nucleus sampling: keep the likeliest tokens up to this probability (1)",
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="keep only the K likeliest tokens (0: all)")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="longest completion in tokens (as in the run's profile)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed; the same seed gives the same text")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the model (as in the run)")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    refuse_bad_numbers(args)
    take_all_bytes()
    text = None if args.interactive else read_prompt(args)
    with ExitStack() as stack:
        chosen, directory = open_subject(args, stack)
        worker = stack.enter_context(
            started("workers.generate", spec_of(args, chosen, directory), name="generation", kept=KEPT)
        )
        session = Session(worker, args)
        with session.listening():
            ready = session.load(chosen)
            if text is not None:
                return session.complete(text)
            session.say(f"{ready.style} style. {HELP[0].upper()}{HELP[1:]}.")
            return session.converse()


def open_subject(args: argparse.Namespace, stack: ExitStack) -> tuple[Chosen, Path]:
    """The model and its directory. A checkpoint's files are held until the stack closes."""
    if args.model:
        chosen = choose_model(args.model, None, identify=False)
        return chosen, chosen.directory
    run_dir = find_run(args)
    chosen = choose_checkpoint(run_dir, args.checkpoint, "generate")
    return chosen, stack.enter_context(held(run_dir, chosen))


class Session:
    """Connects the user with the worker."""

    def __init__(self, worker: LineWorker, args: argparse.Namespace) -> None:
        self._worker, self._args = worker, args
        self._messages = worker.hear()
        self._is_completing = False
        self._asked_to_stop = False
        self._count = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle Ctrl+C: the first one during a completion asks the worker to end it."""
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, *_: object) -> None:
        if not self._is_completing or self._asked_to_stop:
            raise KeyboardInterrupt
        self._asked_to_stop = True
        self._worker.tell(Stop())

    def load(self, chosen: Chosen) -> Ready:
        target = chosen.target
        name = target.name if target.step is None else f"step {target.step} of run {target.name}"
        self.say(f"loading {name} ...")
        return next(message for message in self._messages if isinstance(message, Ready))

    def say(self, text: str) -> None:
        """Print a status line to standard error, apart from the model's output."""
        sys.stderr.write(harmless_lines(text) + "\n")
        sys.stderr.flush()

    def complete(self, text: str) -> int:
        """Request one completion and stream it. Returns 0, or 130 if it was interrupted."""
        seed = secrets.randbits(32) if self._args.seed is None else self._args.seed + self._count
        self._count += 1
        self._is_completing, self._asked_to_stop = True, False
        self._worker.tell(Prompt(text, seed))
        try:
            for message in self._messages:
                match message:
                    case Piece(text=piece) if not self._args.json:
                        sys.stdout.write(harmless_lines(piece))
                        sys.stdout.flush()
                    case Refused(text=why):
                        raise refusal(why)
                    case Completed():
                        return self._end(text, seed, message)
        finally:
            self._is_completing = False
        raise AssertionError("the worker's messages ended without an error")

    def _end(self, text: str, seed: int, message: Completed) -> int:
        if self._args.json:
            record = {"prompt": text, "seed": seed} | msgspec.structs.asdict(message)
            sys.stdout.write(json.dumps(record) + "\n")
        else:
            sys.stdout.write("\n")
        sys.stdout.flush()
        how = {"length": "cut off at the token limit", "stopped": "stopped as asked"}.get(message.reason, "ended")
        rate = message.tokens / max(message.seconds, 1e-3)
        self.say(f"[{how}: {message.tokens} tokens in {message.seconds:.1f} s, {rate:.0f} a second, seed {seed}]")
        return INTERRUPTED if message.reason == "stopped" else 0

    def converse(self) -> int:
        """Read prompts until the user quits."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - enables line editing
        while True:
            try:
                text = input("> " if sys.stdin.isatty() else "")
            except (EOFError, KeyboardInterrupt):
                sys.stdout.write("\n" if sys.stdin.isatty() else "")
                return 0
            if text.strip() == "/quit":
                return 0
            if text.strip() == "/new":
                self._worker.tell(New())
            elif text.strip():
                try:
                    self.complete(readable(text))
                except LonghaulError as error:
                    if error.exit_code != ExitCode.INPUT:
                        raise
                    self.say(error.render())


def read_prompt(args: argparse.Namespace) -> str:
    """Raises LonghaulError: USAGE without a prompt, INPUT if it is not valid text."""
    text: str = args.prompt if args.prompt is not None else ("" if sys.stdin.isatty() else sys.stdin.read())
    if text:
        return readable(text)
    raise usage("there is no prompt", 'python -m orchestrator generate --prompt "..."   (or --interactive)')


def take_all_bytes() -> None:
    """Decode standard input with surrogateescape, so that `readable` can refuse invalid bytes line by line.

    A decoding error would discard a whole block, including valid lines.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def readable(text: str) -> str:
    """Return `text`. Raises LonghaulError (INPUT) if it contains invalid bytes."""
    if place := not_text(text):
        raise LonghaulError(
            f"the prompt is not {sys.stdin.encoding}, at �: {place}",
            kept=KEPT,
            next_command="iconv -f latin1 -t utf-8 FILE | python -m orchestrator generate",
            exit_code=ExitCode.INPUT,
        )
    return text


def spec_of(args: argparse.Namespace, chosen: Chosen, directory: Path) -> GenerateSpec:
    profile = chosen.profile
    if args.device:
        profile = replace(profile, run=replace(profile.run, device=args.device))
    is_run = chosen.target.kind == "checkpoint" or chosen.style == "run"
    return GenerateSpec(
        directory=str(directory.resolve()),
        step=chosen.target.step,
        profile=profile,
        style="run" if args.style == "auto" and is_run else args.style,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_new_tokens=args.max_new_tokens or chosen.max_new_tokens,
    )


def refuse_bad_numbers(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE)."""
    checks = (
        (0 <= args.temperature <= 10, f"--temperature {args.temperature:g}: between 0 and 10"),
        (0 < args.top_p <= 1, f"--top-p {args.top_p:g}: more than 0, at most 1"),
        (args.top_k >= 0, f"--top-k {args.top_k}: at least 0"),
        (args.max_new_tokens is None or args.max_new_tokens > 0, f"--max-new-tokens {args.max_new_tokens}: at least 1"),
        (args.seed is None or 0 <= args.seed < 2**63, f"--seed {args.seed}: at least 0"),
    )
    for is_fine, text in checks:
        if not is_fine:
            raise usage(text, "python -m orchestrator generate --help")


def usage(text: str, next_command: str) -> LonghaulError:
    return LonghaulError(text, kept=KEPT, next_command=next_command, exit_code=ExitCode.USAGE)


def refusal(text: str) -> LonghaulError:
    return LonghaulError(text, kept=KEPT, next_command="a shorter prompt, or --style raw", exit_code=ExitCode.INPUT)
