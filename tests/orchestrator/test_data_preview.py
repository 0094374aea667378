"""data preview and the how-to on own data: real commands on files as people bring them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY

PROFILE = """
[run]
worker = "grpo"
[model]
random_init = "qwen2-tiny"
prompt_style = "chat"
[data]
tasks = "own.jsonl"
held_out = 0.3
[data.columns]
prompt = "ask"
answer = "solution"
[sampling]
max_prompt_tokens = 120
max_completion_tokens = 40
[validation]
suites = ["held-out"]
"""


def preview(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": ""}
    command = [sys.executable, "-m", "orchestrator", "data", "preview", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


def test_rows_are_shown_as_the_model_sees_them_with_tokens_parts_and_reward(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "\x1b[2J"}, {"role": "user", "content": "2+2?"}]
    rows = [
        {"ask": chat, "solution": 4, "level": 1},
        {"ask": "long " * 50, "solution": 5, "level": None},
        {"ask": "", "solution": 6},
        *({"ask": f"{number}?", "solution": number} for number in range(20)),
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.toml").write_text(PROFILE)
    words = ["own.toml", "--completion", r"so \boxed{4}"]
    done = preview(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    first, second, _ = facts["rows"]
    assert first["prompt"].endswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n")
    assert first["tokens"] == 37 and first["reward"]["parts"]["correct"] == 1 == first["reward"]["total"]
    assert second["part"] == "left_out" and "269 tokens, 120 are allowed" in second["reason"]
    assert second["reward"]["reason"] == "another number"
    assert [one["line"] for one in facts["left_out"]] == [3, 2] and facts["is_refused"]
    assert facts["columns"] == {"solution": "number", "level": "number or nothing"}
    assert facts["parts"]["left_out"] == 2 and sum(facts["parts"].values()) == len(rows)
    assert 0 < facts["parts"]["held_out"] < 15

    shown = preview(*words, "--rows", "1", cwd=tmp_path).stdout
    assert "\x1b" not in shown and "    ␛[2J<|im_end|>" in shown
    assert "  reward: 1 (" in shown and "  line 3: no text in the column `ask`" in shown


def test_what_cannot_be_previewed_is_refused_with_the_way_out(tmp_path: Path) -> None:
    gone = preview("gone.jsonl", cwd=tmp_path)
    assert gone.returncode == ExitCode.INPUT and "there is no such file" in gone.stderr
    nothing = preview(cwd=tmp_path)
    assert nothing.returncode == ExitCode.USAGE and "needs a FILE or --profile" in nothing.stderr


@pytest.mark.slow
def test_the_how_to_on_own_data_is_twenty_lines_that_work(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"### Own data in twenty lines\n.*?```bash\n(.*?)```", text, flags=re.DOTALL)
    assert len(block.splitlines()) <= 20
    script = block.replace("python -m", f"{sys.executable} -m")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": ""}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held out, never trains" in done.stdout and "held-out" in done.stdout + done.stderr
