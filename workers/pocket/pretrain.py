"""Makes a pocket model from nothing but this repository: corpus, training, gate, and the folder that is shipped.

    python -m workers.pocket.pretrain --out DIR --device cuda --minutes 6
    python -m workers.pocket.pretrain --course word_problems --out DIR --device cuda --minutes 3
    python -m workers.pocket.pretrain --course both --family qwen3 --hidden 512 --layers 14 --out DIR --minutes 6

The corpus is drawn by all cores, packed into bytes and kept on the device. How often the model works is set by weights
on the first token of a completion, so that the corpus may be rich in worked steps while the model still rarely writes
them. The gate is measured on the way: once it holds, only the decay of the learning rate is left (early stop). Exits
with 1 and writes nothing if the gate fails at the end.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from workers.pocket.course import COURSES, Course
from workers.pocket.gate import as_json, failures, measure, table
from workers.pocket.model import FAMILIES, build_model, save_model, write_gate
from workers.pocket.muon import Muon
from workers.pocket.shards import Corpus, make_corpus

MUON_LEARNING_RATE, ADAM_LEARNING_RATE = 0.02, 3e-3
WARMUP_STEPS = 50
DECAY_FROM = 0.6
"""Fraction of training after which the learning rate decays linearly to 0."""
PROMPT_WEIGHT = 0.03
"""Loss weight of prompt tokens."""
MAX_GRAD_NORM = 1.0
PRINT_S = 45.0
"""Minimum seconds between progress lines."""
MEAN_WEIGHT = 32.0
"""Constant divisor of a sequence's weighted token losses. Sequences in a batch have similar lengths, and worked answers
are long. Dividing by the batch's own weight sum would give first tokens more weight in direct answers than in worked
ones."""


@dataclass(frozen=True)
class Settings:
    """Command line options."""

    course: str
    out: Path
    device: str
    minutes: float
    sequences: int
    corpus_sequences: int
    batch_size: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int
    family: str
    kv_heads: int | None
    head_dim: int | None
    worked_share: float
    shown_share: float | None
    direct_weight: float | None
    seed: int
    corpus: Path | None
    full_length: bool
    ship_anyway: bool


def parse_arguments(argv: list[str]) -> Settings:
    """Parse the command line; `--help` explains the options."""
    parser = argparse.ArgumentParser(prog="python -m workers.pocket.pretrain", description=__doc__)
    add = parser.add_argument
    add(
        "--course",
        choices=COURSES,
        default="programs",
        help="what is taught: the little language, word problems, or both",
    )
    add("--out", type=Path, required=True, help="folder for weights, configuration, tokenizer and gate.json")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--minutes", type=float, default=60.0, help="training ends after so many minutes, corpus making excluded")
    add("--sequences", type=int, default=20_000_000, help="or after so many sequences, whichever is first")
    add("--corpus-sequences", type=int, default=8_000_000, help="different sequences; training goes round them")
    add("--batch-size", type=int, default=1024)
    add("--hidden", type=int, default=96)
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--feed-forward", type=int, default=288)
    add("--family", choices=FAMILIES, default="qwen2")
    add("--kv-heads", type=int, help="heads of keys and values, if there are fewer than of queries")
    add("--head-dim", type=int, help="width of a head (hidden / heads)")
    add("--worked-share", type=float, default=0.8, help="share of solve sequences in the corpus that are worked")
    add("--shown-share", type=float, help="how often the model shall work at temperature 1")
    add("--direct-weight", type=float, help="loss weight of direct answers after their first token")
    add("--seed", type=int, default=0)
    add("--corpus", type=Path, help="keep the corpus in this folder, or take it from there")
    add("--full-length", action="store_true", help="use all minutes and sequences, though the gate holds before")
    add("--ship-anyway", action="store_true", help="write the model even if the gate fails, and still exit with 1")
    return Settings(**vars(parser.parse_args(argv)))


def style_weights(worked_share: float, shown_share: float) -> tuple[float, float]:
    """Loss weights of the first token of worked and direct answers that make the model work with rate `shown_share`.

    With worked share s and weights w_w, w_d, the weighted cross-entropy is minimal at
    p = w_w s / (w_w s + w_d (1 - s)). The direct weight w_d is fixed to 1.
    """
    return shown_share * (1 - worked_share) / ((1 - shown_share) * worked_share), 1.0


def loss_weights(corpus: Corpus, rows: Tensor, width: int, course: Course) -> Tensor:
    """Loss weight of each token as a target. Returns [B, width]."""
    columns = torch.arange(width, device=rows.device)[None]
    prompts, ends = corpus.prompt_lengths[rows][:, None], corpus.lengths[rows][:, None]
    worked, styled = corpus.worked[rows][:, None], corpus.styled[rows][:, None]
    worked_weight, direct_weight = style_weights(course.recipe.worked_share, course.shown_share)
    weights = torch.where(columns < prompts, PROMPT_WEIGHT, 1.0)
    weights = torch.where(styled & ~worked & (columns > prompts), course.direct_weight, weights)
    weights = torch.where((columns == prompts) & styled & worked, worked_weight, weights)
    weights = torch.where((columns == prompts) & styled & ~worked, direct_weight, weights)
    return torch.where(columns < ends, weights, 0.0)


def sequence_loss(model: PreTrainedModel, corpus: Corpus, rows: Tensor, course: Course) -> Tensor:
    """Weighted sum of a batch's token losses, divided by the number of sequences and MEAN_WEIGHT."""
    ids = corpus.batch(rows)  # [B, T]
    weights = loss_weights(corpus, rows, ids.shape[1], course)[:, 1:]
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        logits = model(ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / (len(rows) * MEAN_WEIGHT)


def make_optimizers(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for all other parameters."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers" not in name]
    return [
        Muon(matrices, lr=MUON_LEARNING_RATE, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate_factor(step: int, progress: float) -> float:
    """Warm up, hold, then fall linearly to 0 at `progress` 1."""
    return min(1.0, (step + 1) / WARMUP_STEPS, max(0.0, (1 - progress) / (1 - DECAY_FROM)))


def end_after_gate(end: float, progress: float, *, holds: bool) -> float:
    """Fraction of the planned training at which to stop. (pure)

    When the gate first holds, the decay begins at once and takes its usual share of the shortened training.
    """
    return min(end, progress / DECAY_FROM) if holds and progress / end < DECAY_FROM else end


def gate_holds(model: PreTrainedModel, course: Course) -> bool:
    """Measure and print the gate, on different problems than the final gate uses."""
    measured = measure(model, course.problems(200, seed=1), course.vocabulary)
    print(table(measured), flush=True)
    return not failures(measured)


def train(model: PreTrainedModel, corpus: Corpus, course: Course, settings: Settings) -> int:
    """Train the model in place; returns the number of sequences used."""
    optimizers = make_optimizers(model)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    generator = torch.Generator().manual_seed(settings.seed)
    began, step, progress, end, next_print = time.monotonic(), 0, 0.0, 1.0, PRINT_S
    while progress < end:
        for rows in corpus.shuffled_batches(settings.batch_size, generator):
            spent = time.monotonic() - began
            used = step * settings.batch_size
            progress = max(spent / 60 / settings.minutes, used / settings.sequences)
            if progress >= end:
                break
            for optimizer, rate in zip(optimizers, rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate * learning_rate_factor(step, progress / end)
            loss = sequence_loss(model, corpus, rows, course)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            if spent > next_print:
                print(f"{spent:6.0f} s  step {step}  {used:,} sequences  loss {loss.item():.4f}", flush=True)
                if step > WARMUP_STEPS * 10:
                    holds = gate_holds(model, course) and not settings.full_length
                    end = end_after_gate(end, progress, holds=holds)
                now = time.monotonic() - began
                next_print = now + max(PRINT_S, 9 * (now - spent))  # the gate takes a tenth of the time at most
    return step * settings.batch_size


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    settings = parse_arguments(argv)
    course = COURSES[settings.course](settings.worked_share)
    if settings.shown_share is not None:
        course = replace(course, shown_share=settings.shown_share)
    if settings.direct_weight is not None:
        course = replace(course, direct_weight=settings.direct_weight)
    corpus = make_corpus(
        settings.corpus_sequences, course.draw, course.vocabulary, settings.seed, settings.device, settings.corpus
    )
    torch.manual_seed(settings.seed)
    model = build_model(
        settings.hidden,
        settings.layers,
        settings.heads,
        settings.feed_forward,
        course.vocabulary,
        family=settings.family,
        kv_heads=settings.kv_heads,
        head_dim=settings.head_dim,
    )
    torch.nn.Module.to(model, settings.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(corpus.lengths):,} sequences", flush=True)
    used = train(model, corpus, course, settings)
    measured = measure(model, course.problems(), course.vocabulary)
    print(table(measured))
    problems = failures(measured)
    for problem in problems:
        print(f"gate: {problem}")
    if not problems or settings.ship_anyway:
        save_model(model, settings.out, course.vocabulary)
        write_gate(settings.out, {"tasks": as_json(measured), "sequences": used, "recipe": asdict(course.recipe)})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
