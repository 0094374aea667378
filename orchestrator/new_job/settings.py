"""Chooses the shipped profile that suits model and card, and what a new job changes in it. (pure, but for profiles)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.judging import ProfileVerdict, judge
from orchestrator.new_job.hardware import Hardware
from orchestrator.new_job.mapping import ColumnMap
from orchestrator.new_job.models import FOR_WORDS, ChosenModel
from orchestrator.new_job.reward_text import SOLVED_AT
from orchestrator.new_job.rewards import CORRECT, OWN, ChosenReward
from orchestrator.preflight import gib, indented, table, why_none_fits
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import knobs, value_of, with_values
from profiles.load import load_profile
from profiles.rewards import PENALTIES
from profiles.schema import Profile
from profiles.suites import FOR_PROBLEMS, record_of, shipped_suites
from workers.line_contract import Looked

REWARD_FILE = "rewards.py"
FOR_BUILT_IN = "pocket-grpo"
FOR_OTHERS = "grpo-1.5b-8gb"
"""The shipped profiles that a job extends."""
CHARACTERS_A_TOKEN = 3
"""Fewer than usual (four in English), so that prompts of code and numbers fit, too."""
LONGEST_PROMPT = 4096
ROUNDED_TO = 256
CHAT = "chat"
HELD_OUT = "data.held_out"
HELD_OUT_SUITE = HELD_OUT.partition(".")[2].replace("_", "-")  # of the same name
FEWEST_ROWS, MANY_ROWS = 20, 500
IN_A_ROW = 4
"""Completions that share a row with their prompt, as in the profile that is extended."""


@dataclass(frozen=True)
class Job:
    """All that a person decides."""

    name: str
    folder: Path
    model: ChosenModel
    data: str
    """Absolute path of a file or folder, or the built-in problems."""
    looked: Looked
    mapping: ColumnMap
    reward: ChosenReward
    hardware: Hardware

    @property
    def reward_file(self) -> Path:
        return self.folder / REWARD_FILE

    @property
    def profile_file(self) -> Path:
        return self.folder / f"{self.name}.toml"


@dataclass(frozen=True)
class Setting:
    """knob: its full name. reason: why it differs from the profile that is extended."""

    knob: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Settings:
    """base: the shipped profile."""

    base: str
    settings: tuple[Setting, ...]


def rows_of(looked: Looked) -> str:
    """How many there are, in words."""
    return f"{looked.rows:,} row{'s' * (looked.rows != 1)}"


def settings_of(job: Job, function: str) -> Settings:
    """function: name of the one in the reward file. Raises LonghaulError (CUDA_OOM) if the model does not fit."""
    base = FOR_BUILT_IN if job.model.is_built_in else FOR_OTHERS
    profile = load_profile(base).profile
    wanted = [*_of_model(job), *_of_data(job, profile), *_of_reward(job, function)]
    if not job.hardware.is_cpu and not job.model.is_built_in:
        wanted += _of_card(job, with_values(profile, {one.knob: one.value for one in wanted}))
    settings = [one for one in wanted if value_of(profile, one.knob) != one.value]
    return Settings(base, (*settings, *_of_columns(job)))


def _of_model(job: Job) -> Iterator[Setting]:
    if job.hardware.is_cpu:
        yield Setting("run.device", "cpu", 'the processor computes; "auto" takes a GPU where there is one')
    if job.model.is_built_in:
        yield Setting("model.path", job.model.path, "the built-in model for word problems")
        return
    yield Setting("model.path", job.model.path, "absolute, so that the run finds it from any folder")
    yield Setting("model.prompt_style", *_style(job))
    if job.hardware.is_cpu:
        yield Setting("model.dtype", "float32", "what a processor computes well in")
        yield Setting("model.quantization", "none", "4 bits need a GPU")
        yield Setting("memory.cap_gib", 0.0, "the profile's limit is for a GPU")


def _style(job: Job) -> tuple[str, str]:
    """The prompt style, and why."""
    has_template = job.model.has_template
    if job.reward.needs_answers:
        how = "by the model's chat template" if has_template else "as plain text"
        return "boxed-chat" if has_template else "boxed", f"{how}; asks for the answer in a box, where it is looked for"
    if not has_template:
        return "verbatim", "adds nothing to the prompt"
    if CHAT in FOR_PROBLEMS:
        return CHAT, "by the model's chat template, without further words"
    return "boxed-chat", "by the model's chat template; it also asks for a box, which your reward may ignore"


def _of_data(job: Job, profile: Profile) -> Iterator[Setting]:
    looked, is_file = job.looked, job.data not in BUILT_IN
    reason = f"{rows_of(looked)}; absolute, so that the run finds it from any folder"
    yield Setting("data.tasks", job.data, reason if is_file else f"{looked.rows:,} built-in word problems")
    if share := _held_out_share(job):
        yield Setting(HELD_OUT, share, "share of the rows that never train; they are asked after each cycle")
        yield Setting("validation.suites", (HELD_OUT_SUITE,), "the rows that are held out")
    elif not job.model.is_built_in:
        suites = (BUILT_IN[FOR_WORDS].suite,)
        about = record_of(suites[0]).about.partition(";")[0]
        yield Setting("validation.suites", suites, f"not your data, but {about}; docs/evaluation.md has others")
    if job.model.is_built_in:
        return
    longest = next(one.longest for one in looked.columns if one.name == job.mapping.prompt)
    tokens, room = -(-longest // CHARACTERS_A_TOKEN), profile.sampling.max_prompt_tokens
    if tokens > room:
        room = min(LONGEST_PROMPT, -(-tokens // ROUNDED_TO) * ROUNDED_TO)
        yield Setting("sampling.max_prompt_tokens", room, f"the longest prompt has {longest:,} characters")
        rows = room + IN_A_ROW * profile.sampling.max_completion_tokens
        yield Setting("optimizer.row_tokens", rows, "a prompt and four of its completions")
    yield Setting("grpo.sent.enabled", False, "true: from easy to hard; the first cycle then measures every problem")


def _held_out_share(job: Job) -> float:
    """Of rows of any kind: the run's own reward judges them. 0 if too few would be left, or none."""
    can_be = HELD_OUT in knobs() and HELD_OUT_SUITE in shipped_suites()
    if not can_be or job.data in BUILT_IN or job.looked.rows < FEWEST_ROWS:
        return 0.0
    return 0.1 if job.looked.rows >= MANY_ROWS else 0.2


def _of_reward(job: Job, function: str) -> Iterator[Setting]:
    own = f"{job.reward_file}:{function}"
    names = tuple(own if name == OWN else name for name in job.reward.names)
    reason = "parts of the reward, which are summed" if len(names) > 1 else "what earns a reward"
    if names != (CORRECT,):
        yield Setting("grpo.rewards", names, reason)
    if OWN in job.reward.names and _held_out_share(job):
        others = [name for name in job.reward.names if name != OWN and name not in PENALTIES]
        enough = SOLVED_AT[function] + len(others)
        yield Setting("grpo.reward.solved_at", enough, "total reward from which a held-out row counts as solved")


COLUMN_REASONS = {
    "prompt": "the column that is asked",
    "answer": "the column of right answers",
    "tests": "the column of tests for programs",
}


def _of_columns(job: Job) -> list[Setting]:
    return [Setting(f"data.columns.{part}", name, COLUMN_REASONS[part]) for part, name in job.mapping.changed.items()]


# --- what fits --------------------------------------------------------------------------------------------------------


def _of_card(job: Job, profile: Profile) -> list[Setting]:
    """16-bit weights if they fit with room to spare, else 4 bits, else with the planner's settings.

    Raises LonghaulError (CUDA_OOM), in the planner's words, if nothing fits.
    """
    base_gb, cap = 8.0, []
    if job.hardware.gigabytes > base_gb:
        cap = [Setting("memory.cap_gib", 0.0, f"the whole card; the profile is for {base_gb:g} GB")]
    card = job.hardware.name.replace("gb", " GB")
    exact = [*cap, Setting("model.quantization", "none", f"16-bit weights fit {card}, and are more exact than 4 bits")]
    verdict = _judged(job, profile, exact)
    if verdict.plan is None or verdict.plan.usable_bytes is None or (verdict.plan.fits and not verdict.plan.is_tight):
        return exact if verdict.plan is not None and verdict.plan.usable_bytes is not None else cap
    verdict = _judged(job, profile, cap)
    if verdict.plan is not None and verdict.plan.fits:
        return cap
    if verdict.changes:
        reason = f"to fit {card}, by the planner"
        return [*cap, *(Setting(knob, value, reason) for knob, value in verdict.changes.items())]
    raise _too_large(job, verdict)


def _judged(job: Job, profile: Profile, settings: list[Setting]) -> ProfileVerdict:
    return judge(with_values(profile, {one.knob: one.value for one in settings}), job.hardware.machine)


def _too_large(job: Job, verdict: ProfileVerdict) -> LonghaulError:
    plan = verdict.plan
    assert plan is not None and plan.usable_bytes is not None
    return LonghaulError(
        f"{job.model.path} is too large for {job.hardware.name}: it needs up to {gib(plan.demand.device)} GiB "
        f"({plan.demand.worst}) of {gib(plan.usable_bytes)} GiB\n{indented(table(plan))}",
        kept="everything; nothing was written",
        next_command=f"the same command with a smaller --model, or with a larger --card   ({why_none_fits(verdict)})",
        exit_code=ExitCode.CUDA_OOM,
    )
