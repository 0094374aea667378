"""Asks a person at a terminal: by rich's prompts, or by plain lines where the terminal cannot do more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO, TypeVar, cast

from orchestrator.display.wording import harmless
from orchestrator.streams import read_line
from profiles.errors import LonghaulError

Checked = TypeVar("Checked")


class Asker(Protocol):
    """Raises EOFError at the end of the input, KeyboardInterrupt on Ctrl+C."""

    def ask(self, question: str, default: str, choices: Sequence[str] = ()) -> str:
        """The answer, or `default` for an empty one. choices: shown; others may be accepted by whoever asks."""
        ...

    def confirm(self, question: str) -> bool:
        """Whether the answer is yes; the default is no."""
        ...

    def tell(self, text: str) -> None: ...


class Lines:
    """Standard input, as rich reads answers from it."""

    def readline(self) -> str:
        """Raises EOFError at the end."""
        if line := read_line():
            return line
        raise EOFError


class Plain:
    """Lines on standard error and from standard input: standard output may be a pipe."""

    def ask(self, question: str, default: str, choices: Sequence[str] = ()) -> str:
        among = f" ({', '.join(choices)})" if choices else ""
        self.tell(f"{question}{among} [{default}]: ", end="")
        return Lines().readline().strip() or default

    def confirm(self, question: str) -> bool:
        return self.ask(question, "no", ("yes", "no")).lower() in ("y", "yes")

    def tell(self, text: str, end: str = "\n") -> None:
        sys.stderr.write(text + end)
        sys.stderr.flush()


class Rich:
    """rich's prompts on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console  # only here: no other path of `init` needs it

        self._console = Console(highlight=False)

    def ask(self, question: str, default: str, choices: Sequence[str] = ()) -> str:
        from rich.markup import escape
        from rich.prompt import Prompt

        among = escape(f" ({', '.join(choices)})") if choices else ""
        asked = f"[bold]{escape(question)}[/bold]{among} [cyan]{escape(f'[{default}]')}[/cyan]"
        answer = Prompt.ask(
            asked, console=self._console, default=default, show_default=False, stream=cast(TextIO, Lines())
        )
        return str(answer).strip() or default

    def confirm(self, question: str) -> bool:
        from rich.markup import escape
        from rich.prompt import Confirm

        return bool(Confirm.ask(escape(question), console=self._console, default=False, stream=cast(TextIO, Lines())))

    def tell(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def asker_here() -> Asker | None:
    """What suits standard input and output; None if nobody sits there."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    is_screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Rich() if is_screen else Plain()


def settled(
    given: str | None,
    asker: Asker | None,
    question: str,
    default: str,
    check: Callable[[str], Checked],
    choices: Sequence[str] = (),
) -> Checked:
    """What `check` makes of the flag's value, of an answer, or of the default.

    given: the flag's value, which is not asked for. Someone at a terminal is asked again after a wrong answer;
    otherwise the LonghaulError of `check` is raised.
    """
    if given is not None or asker is None:
        return check(default if given is None else given)
    while True:
        answer = asker.ask(question, default, choices)
        try:
            return check(answer)
        except LonghaulError as error:
            asker.tell("\n".join(harmless(line) for line in (*error.what.splitlines(), f"-> {error.next_command}")))
