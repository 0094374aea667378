"""What the variant `code` of `grpo_learning` trains: the built-in model of small programs, on rows with tests.

A row shows three pairs of input and output of a hidden program of two or three statements; its tests are these and
three more pairs. No two rows have the same program, so those that are held out are new programs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

from profiles.built_in import BUILT_IN
from profiles.task_kinds import INDUCTION
from workers.pocket.corpus import STYLE, draw_problem
from workers.pocket.language import render
from workers.tasks.items import HiddenProgram

ROWS = 1500
NUM_PAIRS = 6
MARK = "<prog>"
"""The model writes its program after this, if it works before."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The prompt as it is: the style `verbatim` would add a newline, which the model was never shown."""


def write_rows(path: Path, count: int = ROWS, seed: int = 0) -> Path:
    """The same rows for the same arguments."""
    rng = Random(seed)
    seen: set[object] = set()
    rows: list[dict[str, object]] = []
    while len(rows) < count:
        program, pairs = draw_problem(rng, rng.choice((2, 3)), NUM_PAIRS)
        if program in seen:
            continue
        seen.add(program)
        inputs, outputs = ([repr(one) for one in values] for values in zip(*pairs, strict=True))
        asked = HiddenProgram(render(program), tuple(inputs), tuple(outputs), "", 0, "benchmark")
        tests = [{"call": "f", "input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]
        rows.append({"prompt": STYLE.solve(INDUCTION, asked), "tests": tests})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_model(folder: Path) -> Path:
    """The built-in model of programs with a chat template."""
    shutil.copytree(BUILT_IN["pocket"].directory, folder, dirs_exist_ok=True)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"chat_template": TEMPLATE}))
    return folder


def settings(folder: Path) -> tuple[str, ...]:
    """For `run --set`, beside those of the profile `pocket-grpo`. folder: where the rows and the model are written."""
    folder.mkdir(parents=True, exist_ok=True)
    return (
        f"model.path={write_model(folder / 'model')}",
        "model.prompt_style=chat",
        f"data.tasks={write_rows(folder / 'rows.jsonl')}",
        "data.held_out=0.2",
        "sampling.max_prompt_tokens=96",
        "sampling.max_completion_tokens=128",
        'grpo.rewards=["tests"]',
        f'grpo.reward.options={{tests={{after="{MARK}"}}}}',
        'validation.suites=["held-out"]',
        "validation.examples_per_task=300",
    )
