"""A checkout with the stand-in in the place of open-instruct's program, a YAML, and real masters on them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.knobs import with_values
from profiles.schema import Profile
from state.history import StepFacts
from state.reader import Reader
from tests.faults.harness import Master, Scene

STAND_IN = Path(__file__).with_name("stand_in.py")
GUIDE: dict[str, Any] = {
    "deepspeed_stage": 3,
    "deepspeed_zpg": 1,
    "gather_whole_model": False,
    "gradient_checkpointing": True,
    "push_to_hub": False,
    "num_learners_per_node": [2],
    "vllm_num_engines": 2,
    "vllm_tensor_parallel_size": 1,
    "num_unique_prompts_rollout": 4,
    "num_samples_per_prompt_rollout": 2,
    "total_episodes": 64,
    "checkpoint_state_freq": 3,
}
"""8 steps, with checkpoints at 3 and 6; the last holds the model."""
RUN = {"run.worker": "open_instruct", "run.gpus": 4, "run.max_cycles": 1, "run.steps_per_cycle": 8,
       "run.checkpoint_every": 3}  # fmt: skip


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


@dataclass
class Setting:
    source: Path
    guide: Path
    commit: str

    def knobs(self, **changes: Any) -> dict[str, Any]:
        """Full names -> values. changes: as section__key."""
        own = {"open_instruct.source": str(self.source), "open_instruct.python": sys.executable,
               "open_instruct.guide": str(self.guide), "open_instruct.commit": self.commit}  # fmt: skip
        return RUN | own | {name.replace("__", "."): value for name, value in changes.items()}

    def profile(self, **changes: Any) -> Profile:
        return with_values(Profile(name="oi"), self.knobs(**changes))

    def plan(self, **orders: Any) -> None:
        """What the stand-in does at its next start."""
        (self.source / "open_instruct" / "plan.json").write_text(json.dumps(orders))

    def helpers(self) -> list[int]:
        """Process ids of what the stand-in started."""
        return [int(line) for line in (self.source / "open_instruct" / "helpers").read_text().split()]


def made(folder: Path, **changes: Any) -> Setting:
    """changes: of GUIDE; None leaves an option out."""
    source = folder / "open-instruct"
    (source / "open_instruct").mkdir(parents=True)
    (source / "open_instruct" / "grpo_fast.py").write_text(STAND_IN.read_text())
    git(source, "init", "-q")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "a stand-in")
    guide = folder / "guide.yaml"
    settings = {name: one for name, one in (GUIDE | changes).items() if one is not None}
    guide.write_text("".join(f"{name}: {json.dumps(one)}\n" for name, one in settings.items()))
    return Setting(source, guide, git(source, "rev-parse", "HEAD").strip())


@dataclass
class Stage:
    """One run on a setting."""

    setting: Setting
    scene: Scene

    def start(self, **changes: Any) -> Master:
        quick = {"retry.backoff_s": 0.01, "timeouts.kill_s": 0.2}
        knobs = quick | self.setting.knobs(**changes)
        sets = [part for name, one in knobs.items() for part in ("--set", f"{name}={one}")]
        scene = self.scene
        command = [sys.executable, "-m", "orchestrator", "run", "--run", scene.name, "--profile", "pocket"]
        return scene.launch([*command, "--runs", str(scene.root / "runs"), "--plain", *sets])

    def finish(self, code: int = 0, **changes: Any) -> Master:
        master = self.start(**changes)
        ended = master.end()
        assert ended == code, f"exit {ended}, not {code}\n{master.text()}"
        return master

    def steps(self) -> list[int]:
        """Those that count: committed, or of the open attempt beyond the head."""
        return [facts.step for facts in self.rows()]

    def rows(self) -> tuple[StepFacts, ...]:
        if not self.scene.run.store.exists():
            return ()
        with closing(Reader.open(self.scene.run)) as reader:
            return reader.steps()


@contextmanager
def stage(folder: Path, **changes: Any) -> Iterator[Stage]:
    found = Stage(made(folder, **changes), Scene(folder, name="oi"))
    try:
        yield found
    finally:
        found.scene.clean_up()
