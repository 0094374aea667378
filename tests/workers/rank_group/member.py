"""One of several ranks that train tiny models on the same rows: `python -m tests.workers.rank_group.member JSON`.

Alone it makes the same calls in one process: what it leaves is what several must leave. A process takes seconds to
start, so it does many tasks, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import safetensors.torch
import torch

from profiles.load import load_profile
from profiles.schema import Profile
from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate
from workers.grpo.entropy import EntropyMask
from workers.grpo.rows import Row as GroupRow
from workers.grpo.update import GroupUpdate
from workers.models import optimizer
from workers.models.parallel import parallel_of
from workers.models.policy import Policy, open_policy
from workers.ranks.group import Group, by_file, join

BASE = (
    "sampling.max_prompt_tokens=64", "optimizer.learning_rate=0.003", "optimizer.warmup_steps=0", "run.threads=1",
    "optimizer.row_tokens=64", "optimizer.micro_batch_size=3", "model.gradient_checkpointing=true",
)  # fmt: skip
KINDS = {
    "adapter over nf4": ("azr-3b-qlora-debug", *BASE, "model.dtype=float32"),
    # In float32: other passes are rounded otherwise, which AdamW makes a whole step of where a gradient is 0.
    "own adapter": (
        "azr-3b-qlora-debug",
        *BASE,
        "model.quantization=none",
        "model.dtype=float32",
        "adapter.implementation=own",
    ),
    "adapter with moments in 8 bits": (
        "azr-3b-qlora-8gb-debug",
        *BASE,
        "model.quantization=none",
        "model.dtype=float32",
        "optimizer.kind=adamw8bit",
    ),
    "all weights": (
        "azr-0.5b-debug",
        *BASE,
        "model.dtype=float32",
        "sampling.engine=native",
        "sampling.fallback=[]",
        "optimizer.kind=adamw",
    ),
    "groups": (
        "grpo-1.5b-8gb-debug",
        *BASE,
        "model.dtype=float32",
        "optimizer.kind=adamw",
        "sampling.engine=native",
        "grpo.kl_coef=0.1",
        "grpo.entropy_mask=running",
        "grpo.entropy_min_tokens=0",
    ),
    "all weights in bfloat16": (
        "azr-0.5b-debug",
        *BASE,
        "sampling.engine=native",
        "sampling.fallback=[]",
        "optimizer.kind=adamw",
    ),
}


@dataclass(frozen=True)
class Task:
    """What to do. rows: rollouts a step. begin: folder to load first. failing: (rank, pass) that runs out of memory."""

    kind: str
    out: str = ""
    rows: int = 10
    steps: tuple[int, int] = (1, 4)
    begin: str = ""
    failing: tuple[int, int] = (-1, -1)


def profile_of(kind: str) -> Profile:
    name, *overrides = KINDS[kind]
    return load_profile(name, overrides=overrides).profile


def rows_of(step: int, count: int, vocabulary: int, *, is_grpo: bool) -> tuple[list[Any], list[float]]:
    """Rollouts and their advantages, the same for everybody."""
    draws = Random(step)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(draws.randrange(vocabulary) for _ in range(draws.randint(least, most)))

    rows: list[Any] = []
    for number in range(count):
        prompt, completion = ids(3, 20), ids(2, 9)
        given: dict[str, Any] = {"group": number, "prompt_ids": prompt, "completion_ids": completion, "reward": 0.0}
        given |= {"log_probs": tuple(-draws.uniform(4, 6) for _ in completion), "finish_reason": "stop"}
        rows.append(GroupRow(problem=0, **given) if is_grpo else Row(task="abd", role="solve", **given))
    return rows, [draws.uniform(-1, 1) for _ in rows]


class Member:
    """Policy, optimiser and update of one rank."""

    def __init__(self, task: Task, policy: Policy, group: Group) -> None:
        profile = profile_of(task.kind)
        self.task, self.policy, self.group = task, policy, group
        model = policy.model
        self.parallel = parallel_of(model, group)
        self.optimizer = optimizer.build(model, profile.optimizer, self.parallel.parameters)
        self.state = optimizer.OptimizerState(self.optimizer, model, self.parallel.parts)
        self.is_grpo = profile.run.worker == "grpo"
        self.update: Any
        if self.is_grpo:
            self.update = GroupUpdate(model, self.optimizer, profile, EntropyMask(profile.grpo), self.parallel)
        else:
            self.update = PolicyUpdate(model, self.optimizer, profile.optimizer, 1.0, self.parallel, tis_cap=2.0)

    def load(self, folder: Path) -> None:
        for item in self.policy.items:
            with self.parallel.whole():
                item.load(folder / item.filename)
                self.parallel.keep()
        self.state.load(folder / self.state.filename)

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for item in self.policy.items:
            with self.parallel.reading():
                if self.group.rank == 0:
                    item.save(folder / item.filename)
        if self.group.rank == 0:
            self.state.save(folder / self.state.filename)
        elif self.parallel.parts is not None:
            for _ in self.state.stored():
                pass

    def digest(self) -> str:
        """Of the trained weights as this rank has them."""
        with self.parallel.whole():
            trained = optimizer.trainable(self.policy.model)
            tensors = {name: one.detach().contiguous() for name, one in trained.items()}
            return hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()

    def train(self) -> dict[str, Any]:
        """Metrics of each step, and how often memory ran out."""
        metrics, retries = [], 0
        for step in range(*self.task.steps):
            vocabulary = self.policy.model.config.vocab_size
            rows, advantages = rows_of(step, self.task.rows, vocabulary, is_grpo=self.is_grpo)
            self._fail_once(step)
            while True:
                try:
                    given = (step, 3e-3, rows) if self.is_grpo else (step, rows)
                    is_finite, found = self.update.apply(*given, advantages)
                    break
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    retries += 1
                    self.update.resize(max(1, self.update.micro_batch_size // 2), self.update.head_rows)
            assert is_finite
            metrics.append(found)
        return {"metrics": metrics, "retries": retries, "parameters": sorted(optimizer.trainable(self.policy.model))}

    def _fail_once(self, step: int) -> None:
        rank, number = self.task.failing
        if rank != self.group.rank or step != self.task.steps[0]:
            return
        whole, calls = self.update._micro_batch, []

        def fails(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == number:
                raise RuntimeError("CUDA out of memory")
            return whole(*args, **options)

        self.update._micro_batch = fails


def work(tasks: list[Task], meet: Callable[[], Group]) -> None:
    torch.set_num_threads(1)
    # Before the ranks meet, as a worker does: transformers lets only the first of them write files afterwards.
    policies = [open_policy(profile_of(task.kind), None, torch.device("cpu")) for task in tasks]
    group = meet()
    for task, policy in zip(tasks, policies, strict=True):
        out = Path(task.out)
        out.mkdir(parents=True, exist_ok=True)
        member = Member(task, policy, group)
        if task.begin:
            member.load(Path(task.begin))
        found = member.train()
        member.save(out / "saved")
        (out / f"weights-{group.rank}").write_text(member.digest())
        if group.rank == 0:
            (out / "found.json").write_text(json.dumps(found))


def together(tasks: list[Task], store: Path, size: int) -> None:
    """Let `size` ranks do the tasks; they meet at the file `store`."""
    given = json.dumps([asdict(task) for task in tasks])
    words = [sys.executable, "-m", "tests.workers.rank_group.member", given, str(store), str(size)]
    started = [subprocess.Popen([*words, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(size)]
    errors = [one.communicate(timeout=110)[1] for one in started]
    assert [one.returncode for one in started] == [0] * size, "\n".join(errors)[-4000:]


if __name__ == "__main__":
    given, store, size, rank = sys.argv[1:]
    tasks = [
        Task(**one | {"steps": tuple(one["steps"]), "failing": tuple(one["failing"])}) for one in json.loads(given)
    ]
    work(tasks, lambda: join(by_file(Path(store), int(size)), int(rank), int(size), torch.device("cpu")))
