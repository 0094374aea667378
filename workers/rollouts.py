"""Shows the rollouts of one step as text, for a person: prompt, completion, answer, verdict and reward.

`python -m workers.rollouts` reads its spec from standard input, and reports in lines. It judges nothing and imports no
torch. A process of its own, because the text comes from a model and a file may be large.
"""

from __future__ import annotations

from workers import process

if __name__ == "__main__":
    process.ignore_signals()

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import RolloutGroup, RolloutsSpec, RolloutText, RolloutTexts
from workers.lines import Say, serve

if TYPE_CHECKING:
    from workers.tasks.prompts.style import PromptStyle

MOST_ROLLOUTS = 64
"""Of a group."""
LONGEST = 40_000
"""Characters of a text; the middle of a longer one is left out."""

Decode = Callable[[Sequence[int]], str]


class Row(Struct, frozen=True):
    """What is shown of a row of either trainer (`workers.azr.rows`, `workers.grpo.rows`); the rest is skipped."""

    group: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    finish_reason: str
    reward: float | None = None
    task: str = ""
    role: str = ""
    is_correct: bool = False
    is_well_formed: bool = True
    is_answered: bool = True
    own_rewards: dict[str, float] = {}
    parts: dict[str, float] = {}
    failure: str = ""
    is_finite: bool = True
    is_own: tuple[bool, ...] = ()

    @property
    def key(self) -> str:
        return "/".join(filter(None, (self.role, self.task, str(self.group))))


class _Header(Struct, frozen=True):
    step: int


def work(spec: RolloutsSpec, say: Say) -> None:
    say(texts(spec))


def texts(spec: RolloutsSpec) -> RolloutTexts:
    """Raises LonghaulError (INPUT) for a file that is gone or cannot be read, or without a tokenizer."""
    path = Path(spec.file)
    try:
        step, rows = read(path)
    except FileNotFoundError as error:
        raise refusal(f"the rollouts {path.name} are gone: the run needs them no longer", _KEEP) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise refusal(f"the rollouts {path.name} cannot be read: {error}"[:300], f"head -c 300 {path}") from error
    groups = {key: list(found) for key, found in groupby(sorted(rows, key=lambda row: row.key), lambda row: row.key)}
    facts = sorted((group_facts(key, found) for key, found in groups.items()), key=_order)
    chosen = spec.group if spec.group in groups else telling(facts)
    if not chosen:
        return RolloutTexts(step, facts, "", "", [], 0)
    decode, answer = decoder(spec.tokenizers), answer_finder(spec.style)
    found = groups[chosen]
    shown = [rollout_text(row, decode, answer) for row in found[:MOST_ROLLOUTS]]
    return RolloutTexts(step, facts, chosen, cut(decode(found[0].prompt_ids)), shown, len(found) - len(shown))


_KEEP = "python -m orchestrator run --set retention.keep_rollout_steps=20   (keeps those of the last 20 steps)"


def read(path: Path) -> tuple[int, list[Row]]:
    """(step, complete rows). A file that is still being written ends early; its trailer and summary are no rows."""
    rows: list[Row] = []
    as_row = msgspec.json.Decoder(Row).decode
    with path.open("rb") as lines:
        step = msgspec.json.decode(next(lines, b""), type=_Header).step
        for line in lines:
            try:
                rows.append(as_row(line))
            except msgspec.ValidationError:
                continue  # the summary, the trailer, or the row of a trainer without tokens
            except msgspec.DecodeError:
                break
    return step, rows


def group_facts(key: str, rows: Sequence[Row]) -> RolloutGroup:
    rewards = [row.reward for row in rows if row.reward is not None and not row.failure]
    return RolloutGroup(
        key,
        rows[0].role,
        rows[0].task,
        size=len(rows),
        right=sum(row.is_correct for row in rows),
        mean=sum(rewards) / len(rewards) if rewards else None,
        low=min(rewards, default=None),
        high=max(rewards, default=None),
    )


def _order(group: RolloutGroup) -> tuple[bool, str, int]:
    """Solvers first, then as in the file."""
    return group.role == "propose", group.task, int(group.key.rpartition("/")[2])


def telling(groups: Sequence[RolloutGroup]) -> str:
    """Key of the first group whose rewards differ most: two answers to one prompt, one better than the other."""
    spreads = [(one.high - one.low if one.high is not None and one.low is not None else 0.0) for one in groups]
    return groups[spreads.index(max(spreads))].key if groups else ""


def rollout_text(row: Row, decode: Decode, answer: Callable[[Row, str], str | None]) -> RolloutText:
    pieces = [(own, decode(ids)) for own, ids in segments(row)]
    found = answer(row, "".join(text for _, text in pieces))
    return RolloutText(
        pieces=[(own, cut(text)) for own, text in pieces],
        answer=None if found is None else cut(found),
        tokens=len(row.completion_ids),
        reward=row.reward if row.is_finite else None,
        parts=row.parts | row.own_rewards,
        is_correct=row.is_correct,
        is_answered=row.is_answered and row.is_well_formed,
        is_cut=row.finish_reason == "length",
        failure=row.failure if row.is_finite else "the numbers of the engine were not finite",
    )


def segments(row: Row) -> Iterator[tuple[bool, list[int]]]:
    """(whether the model drew them, tokens) of each stretch of a completion."""
    own = row.is_own or (True,) * len(row.completion_ids)
    for is_own, found in groupby(zip(own, row.completion_ids, strict=False), lambda pair: pair[0]):
        yield is_own, [token for _, token in found]


def cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - LONGEST:,} characters are left out …\n{text[-half:]}"


def decoder(directories: Sequence[str]) -> Decode:
    """Text of tokens, special ones included, so that a misplaced one is visible."""
    files = [path for one in directories if (path := Path(one) / "tokenizer.json").is_file()]
    if not files:
        raise refusal("no tokenizer of this run was found, so its rollouts cannot be shown as text", "ls checkpoints")
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(files[0]))
    except Exception as error:  # the library raises plain Exception
        raise refusal(f"{files[0]} is no tokenizer: {error}"[:300], f"head -c 300 {files[0]}") from error
    return lambda ids: str(backend.decode(list(ids), skip_special_tokens=False))


def answer_finder(style: str) -> Callable[[Row, str], str | None]:
    """Finds what was judged in a completion, by the same code as the trainer."""
    if style == "pocket":
        from workers.tasks.prompts.pocket import PocketStyle

        return _of_style(PocketStyle())
    if style.startswith("azr"):
        from workers.tasks.prompts.azr import AzrStyle

        return _of_style(AzrStyle(style))
    return _verified


def _verified(row: Row, text: str) -> str | None:
    from workers.verifiers.answers import extract

    return extract(text).text


def _of_style(style: PromptStyle) -> Callable[[Row, str], str | None]:
    from workers.tasks.kinds import registry

    def find(row: Row, text: str) -> str | None:
        if row.task not in registry.names():
            return _verified(row, text)
        if row.role != "propose":
            return style.parse_answer(row.task, text)
        proposal = style.parse_proposal(row.task, text)
        return None if proposal is None else "\n".join((proposal.program, *proposal.inputs))

    return find


def refusal(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept="the run, unchanged", next_command=next_command, exit_code=ExitCode.INPUT)


if __name__ == "__main__":
    serve(RolloutsSpec, work)
