"""A test double of open-instruct's `grpo_fast.py`, which needs GPUs: its options, log, checkpoints, resume; no model.

Tests put this file in its place in a checkout of their own. It prints as that program does at the pinned commit,
through rich and a logger; writes files named as DeepSpeed's after every `checkpoint_state_freq` steps; goes on from
`latest`; and trains nothing. A plan beside it (`plan.json`, read once) makes it crash, hang or tear a checkpoint.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from rich import print as rprint
from rich.panel import Panel
from rich.table import Table

UPDATES_OF_A_STEP = 2
"""DeepSpeed's folders count optimiser updates, so their numbers are not those of steps."""
logging.basicConfig(
    level=logging.INFO,
    format="%(asctime)s - %(levelname)s - grpo_fast.py:%(lineno)d - %(message)s",
    datefmt="%Y-%m-%d %H:%M:%S",
)
log = logging.getLogger()


def options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
            last = name
        else:
            found[last].append(word)
    return found


def panel(metrics: dict[str, float | int]) -> None:
    rows = defaultdict(list)
    for name, number in metrics.items():
        group, slash, rest = name.partition("/")
        text = str(number)
        if isinstance(number, float):
            text = f"{number:.2e}" if abs(number) < 1e-5 else f"{number:.2f}"
        rows[group if slash else "other"].append(f"{rest if slash else name}: {text}")
    table = Table(show_header=False, box=None)
    table.add_column("Category", style="cyan")
    table.add_column("Values", style="magenta")
    for group in sorted(rows):
        table.add_row(group, " | ".join(rows[group]))
    rprint(Panel(table, title="Metrics", expand=False, border_style="bold green"))


def save(folder: Path, step: int, learners: int, *, torn: bool) -> None:
    tag = folder / f"global_step{step * UPDATES_OF_A_STEP}"
    tag.mkdir(parents=True)
    for rank in range(learners):
        (tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").write_text(json.dumps({"training_step": step}))
        if not torn or rank == 0:
            (tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_text(f"moments of {rank} at {step}")
    reference = folder / "ref_policy"
    reference.mkdir(exist_ok=True)
    (reference / "pytorch_model.bin").write_text("the first model")
    (folder / "latest").write_text(tag.name)
    log.info(f"Saved checkpoint state at step {step} to {folder}")


def resumed_from(folder: Path) -> int:
    if not folder.exists():
        log.warning(f"Skipping loading checkpoint state from {folder} because it does not exist!")
        return 0
    if not (folder / "latest").exists():
        raise ValueError(f"Failed to load checkpoint from {folder}")
    tag = folder / (folder / "latest").read_text()
    return int(json.loads((tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").read_text())["training_step"])


def main() -> None:
    given = options(sys.argv[1:])
    one = {name: words[0] for name, words in given.items() if len(words) == 1}
    learners = sum(map(int, given["num_learners_per_node"]))
    batch = int(one["num_unique_prompts_rollout"]) * int(one["num_samples_per_prompt_rollout"])
    steps, every = int(one["total_episodes"]) // batch, int(one["checkpoint_state_freq"])
    state = Path(one["checkpoint_state_dir"])
    orders = Path(__file__).with_name("plan.json")
    plan = json.loads(orders.read_text()) if orders.exists() else {}
    orders.unlink(missing_ok=True)
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)  # as a daemon of Ray's
    Path(__file__).with_name("helpers").open("a").write(f"{helper.pid}\n")
    done = resumed_from(state)
    log.info(f"[Main Thread] Resuming training from step {done + 1}")
    for step in range(done + 1, steps + 1):
        time.sleep(plan.get("step_s", 0.05))
        if plan.get("crash_before") == step:
            raise RuntimeError("CUDA error: an illegal memory access was encountered \x1b[2J")
        if plan.get("hang_before") == step:
            time.sleep(600)
        sys.stderr.write(f"Running training step {step}: 100%|████| {learners}/{learners} [00:01<00:00]\n")
        sys.stdout.write("(PolicyTrainerRayProcess pid=77) │ other training_step: 9999 │\n")
        panel(
            {
                "episode": step * batch,
                "training_step": step,
                "lr": 1e-6,
                "scores": 0.25,
                "time/total": 2.0,
                "time/training": 1.0,
                "time/group_generation_max": 0.5,
                "val/sequence_lengths": 100.0,
                "val/stop_rate": 0.75,
                "loss/total_avg": float("nan") if step == 2 else 0.5,
                "optim/grad_norm": 1.25,
            }
        )
        if step % every == 0:
            save(state, step, learners, torn=plan.get("torn") == step)
    helper.kill()
    model = Path(one["output_dir"]) / "grpo__1__2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("weights")
    (model / ".checkpoint_complete").touch()
    if plan.get("hang_at_end"):
        time.sleep(600)


if __name__ == "__main__":
    assert os.environ["COLUMNS"] and "PYTHONSAFEPATH" not in os.environ
    main()
