"""The section [azr]: what self-play is. (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FIXED, Count, Positive, Section, Share


class Azr(Section, frozen=True):
    """[azr]: self-play. Sources: arXiv 2505.03335, and the decision register in docs/algorithm.md."""

    tasks: Annotated[tuple[Literal["abd", "ded", "ind"], ...], Meta(min_length=1), FIXED] = ("abd", "ded", "ind")
    """Kinds of task: abduction (find an input), deduction (find the output), induction (find the program)."""
    proposals_per_task: Positive = 12
    """Proposer rollouts of one task in one step (B)."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Solver rollouts of one proposed task; their success rate is the proposer's reward (n), so two at least."""
    train_on_estimates: bool = True
    """Train the solver on the rollouts that estimated the rate. False: solve a batch of its own, as in the paper."""
    solve_batch: Count = 0
    """Solver tasks of one kind in one step; new valid tasks first, then old ones from the buffer. 0: as proposals."""
    solver_mix: Literal["max_new", "half_new", "uniform_total", "step"] = "max_new"
    """Which tasks a solver batch of its own takes: new ones first, new ones up to half, any alike, or late ones."""
    references: Count = 1
    """Earlier tasks shown to the proposer (K); the pocket style shows exactly one."""
    reference_weighting: Literal["uniform", "step"] = "uniform"
    """How they are drawn: alike, or by the step that made them, plus one. Recency may collapse (paper, D.3)."""
    hide_input: bool = False
    """Tell the proposer not to write the test input into its program. An ablation."""
    composite_from_step: Count = 0
    """Step from which proposers are asked to build on 1 to 3 earlier programs; 0: never."""
    composite_share: Share = 0.5
    """Share of deduction and abduction prompts, from that step on, that ask for it."""
    program_fence: Literal["first", "last"] = "first"
    """Which of several fences with code is the proposed program."""
    single_def_only: bool = False
    """Refuse proposals with more than one `def`, as the published code does although its prompt invites helpers."""
    lenient_fallbacks: bool = False
    """Look for answers outside of fences in the ways of the published code: guess-work, for parity."""
    strict_types: bool = False
    """Values that differ in type are different: 1 is neither 1.0 nor True."""
    proposer_zero_reward: float = -0.5
    """Reward of a valid proposal that always or never is solved. The paper says 0, all its published runs used -0.5."""
    novelty: Literal["canonical", "tree", "text"] = "tree"
    """By what a proposal is known: but for names and dead statements, its syntax tree, or (as published) its text."""
    repeats: Literal["flat", "as_new"] = "flat"
    """A valid proposal that is known already earns `repeat_reward`, or (as published) what a new one would earn."""
    repeat_reward: float = -0.5
    """Reward of a valid proposal that the buffer already has (`novelty`), if it is flat."""
    induction_reward: Literal["binary", "accuracy", "if_one_correct"] = "binary"
    """What hidden pairs pay: all or nothing, the share that holds, or all for one."""
    adv_norm: Literal["sample", "token"] = "sample"
    """Statistics of a cell over its rollouts, or over their tokens as in the published code (`cell` advantages)."""
    minibatch_order: Literal["task", "shuffle"] = "task"
    """Updates of one step take the tasks one after another, or a random mix."""
    proposer_share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of a task's update that its proposals have, however few they are; 0: what their number gives them."""
    train_proposer: bool = True
    """False: the proposer's rollouts get no gradient. A control that shows what training it adds."""
    random_rewards: bool = False
    """True: rewards are drawn at random. A control: held-out accuracy must not rise."""
    buffer_cap: Positive = 16384
    """Tasks that a buffer holds; beyond it the oldest that is no seed is evicted, and new ones always enter."""
    induction_max_statements: Count = 0
    """Longest program, in statements, that induction is asked about; 0: any."""
    max_output_chars: Positive = 4096
    """Outputs with a longer repr make a proposal invalid; they are never cut."""
    allow_none_output: bool = False
    """Accept programs that return None; the published code does."""
    buffer_filter: Literal["all", "non_one", "non_extremes"] = "all"
    """Which new tasks are stored: all, those not always solved, those sometimes solved."""
    seed_tasks: Positive = 1
    """Tasks of a kind that the buffer holds before self-play begins; 1 is the identity alone. Unread once seeded."""
    max_seed_batches: Positive = 200
    """Batches after which seeding gives up and says why."""
    seed_parse: Literal["whole_response", "answer"] = "whole_response"
    """What seeding reads of a response: base models rarely keep the tags, and nobody is rewarded yet."""
