"""The section [azr]: self-play. (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FIXED, Count, Positive, Section, Share
from profiles.task_kinds import NAMES

TaskName = Annotated[
    str,
    Meta(
        pattern=rf"^({'|'.join(NAMES)}|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        extra={"rule": f"one of {', '.join(NAMES)} or MODULE:NAME", "choices": NAMES},
    ),
]
"""A built-in kind of task, or MODULE:NAME of another one's record."""


class AzrVariants(Section, frozen=True):
    """[azr.variants]: ablations and published variants of self-play. No run needs them; each has its reason."""

    solver_mix: Literal["max_new", "half_new", "uniform_total", "step"] = "max_new"
    """Tasks of a separate solver batch: new ones first, new ones up to half, any with equal chance, or later ones more
    often."""
    reference_weighting: Literal["uniform", "step"] = "uniform"
    """How references are drawn: uniformly, or by their step plus one. Preferring recent ones may collapse (paper,
    D.3)."""
    hide_input: bool = False
    """Tell the proposer not to write the test input into its program. For an ablation."""
    composite_from_step: Count = 0
    """Step from which the proposer is asked to build on 1 to 3 earlier programs; 0: never."""
    composite_share: Share = 0.5
    """Share of deduction and abduction prompts that ask for this, from that step on."""
    program_fence: Literal["first", "last"] = "first"
    """Which fence is the proposed program, if there are several with code."""
    single_def_only: bool = False
    """Refuse proposals with more than one `def`, as the published code does, although its prompt invites helpers."""
    lenient_fallbacks: bool = False
    """Also look for answers outside of fences, as the published code does. This guesses; use it only for parity."""
    strict_types: bool = False
    """Treat values of different types as different: 1 is neither 1.0 nor True."""
    repeats: Literal["flat", "as_new"] = "flat"
    """A valid but known proposal earns `repeat_reward`, or (as published) the reward of a new one."""
    induction_reward: Literal["binary", "accuracy", "if_one_correct"] = "binary"
    """Reward for the hidden pairs: all or nothing, the share that is right, or full reward for one."""
    adv_norm: Literal["sample", "token"] = "sample"
    """Compute the statistics of a cell over its rollouts, or, as the published code, over tokens (`cell`
    advantages)."""
    minibatch_order: Literal["task", "shuffle"] = "task"
    """The updates of one step take one task after another, or a random mix."""
    train_proposer: bool = True
    """False: the proposer's rollouts get no gradient. A control that shows what training the proposer adds."""
    random_rewards: bool = False
    """True: rewards are drawn at random. A control: held-out accuracy must not rise."""
    allow_none_output: bool = False
    """Accept programs that return None, as the published code does."""
    buffer_filter: Literal["all", "non_one", "non_extremes"] = "all"
    """Which new tasks are stored: all, those not always solved, or those sometimes but not always solved."""
    seed_parse: Literal["whole_response", "answer"] = "whole_response"
    """What seeding reads of a response. Base models rarely keep the tags, and seeding gives no rewards."""


class Azr(Section, frozen=True):
    """[azr]: settings of self-play. Sources: arXiv 2505.03335, and the decision register in docs/algorithm.md."""

    tasks: Annotated[tuple[TaskName, ...], Meta(min_length=1), FIXED] = NAMES
    """Kinds of task: abduction (find an input), deduction (find the output), induction (find the program), or one of
    your own (docs/extending.md)."""
    proposals_per_task: Positive = 12
    """Proposer rollouts of one task in one step (B)."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Solver rollouts of one proposed task (n). Their success rate sets the proposer's reward, so at least two."""
    train_on_estimates: bool = True
    """Train the solver on the rollouts that estimated the rate. False: draw a separate batch, as in the paper."""
    solve_batch: Count = 0
    """Solver tasks of one kind in one step; new valid tasks first, then old ones. 0: as many as proposals."""
    references: Count = 1
    """Earlier tasks that the proposer sees (K); the pocket style shows exactly one."""
    proposer_zero_reward: float = -0.5
    """Reward of a valid proposal that is always or never solved. The paper says 0; all its published runs used -0.5."""
    novelty: Literal["canonical", "tree", "text"] = "tree"
    """What makes a proposal known: its code without names and dead statements, its syntax tree, or (as published) its
    text."""
    repeat_reward: float = -0.5
    """Reward of a valid proposal that the buffer already has (`novelty`), with `repeats = "flat"`."""
    proposer_share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Weight of the proposals in a task's update, however few they are; 0: in proportion to their number."""
    buffer_cap: Positive = 16384
    """Tasks that a buffer holds. Beyond that the oldest task that is not a seed leaves; new ones always enter."""
    induction_max_statements: Count = 0
    """Longest program, in statements, that induction uses; 0: any."""
    max_output_chars: Positive = 4096
    """Outputs with a longer repr make a proposal invalid; they are never cut."""
    seed_tasks: Positive = 1
    """Tasks of each kind in the buffer before self-play begins; 1: only the identity. Ignored after seeding."""
    max_seed_batches: Positive = 200
    """Batches after which seeding gives up and says why."""
    advantages: Literal["cell", "group"] = "cell"
    """`cell`: TRR++, normalised over all rollouts of one (task, role). `group`: solver baseline per prompt."""
    loss_divisor: Literal["tokens", "constant"] = "tokens"
    """Divide the token losses of an update by its number of tokens, or by rollouts times `loss_constant`."""
    loss_constant: Annotated[float, Meta(gt=0)] = 16.0
    """Tokens that one rollout counts as, with loss_divisor = "constant". Long answers then keep their full weight."""
    variants: AzrVariants = AzrVariants()
