"""The section [grpo]: training on problems with known answers, by comparing rollouts of one problem. (pure)"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from profiles.section import FIXED, FREE, Count, Positive, Seconds, Section, Share


class Sent(Section, frozen=True):
    """[grpo.sent]: a curriculum by semantic entropy (SENT): problems from easy to hard."""

    enabled: Annotated[bool, FIXED] = False
    """Order the problems from easy to hard by the semantic entropy of the first policy's answers (SENT)."""
    samples: Annotated[int, Meta(ge=2)] = 8
    """Answers to each problem from which its entropy is measured (M)."""
    stages: Annotated[int, Meta(ge=1, le=8), FIXED] = 2
    """Equal parts of the ordered problems; training opens one after another."""
    saturated: Annotated[Literal["thin", "keep", "drop"], FIXED] = "thin"
    """Problems that are always solved in the same way: keep a twentieth, all, or none of them."""
    replay: Share = 0.2
    """Share of draws from earlier stages."""
    min_steps: Positive = 50
    """Steps of a stage before the next one may open."""
    max_steps: Positive = 500
    """Steps of a stage after which the next one opens regardless."""
    accuracy: Share = 0.75
    """Running mean of the share of right answers that opens the next stage."""
    uniform: Share = 0.6
    """Running mean of the share of uniform groups that opens the next stage, because this one has little left to
    teach."""
    on_stale: Annotated[Literal["rebuild", "fail", "shuffle"], FREE] = "rebuild"
    """If the measured order belongs to another model, file or setting: measure again, refuse, or train without
    order."""


class GrpoVariants(Section, frozen=True):
    """[grpo.variants]: ablations and published variants of GRPO. No run needs them; each has its reason."""

    std_ddof: Literal[0, 1] = 0
    """0: deviation of the group itself; 1: sample deviation, which reproduces TRL."""
    denominator: Literal["kept", "all"] = "kept"
    """Whether rollouts that were left out count in the divisor of `norm`."""
    kl_tokens: Literal["all", "selected"] = "all"
    """Compute the KL over all tokens, or only over those that the entropy mask keeps; the head then reads no others."""
    low_entropy_kl: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of the KL for tokens that the entropy mask drops, in addition to `kl_coef`; 0: none."""
    low_entropy_cov_share: Share = 0.0
    """Share of the dropped tokens with the largest covariance of advantage and log-prob: they get
    `low_entropy_cov_kl`."""
    low_entropy_cov_kl: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of the KL of that share; a value above `low_entropy_kl` holds these tokens more firmly."""
    tis_mode: Literal["token_truncate", "token_mask", "sequence_mask"] = "token_truncate"
    """Importance weights above `tis_cap`: cut to it, drop their token, or drop the rollout by its product of
    weights."""
    ratio_level: Literal["token", "sequence"] = "token"
    """What is clipped: the ratio of each token, or the geometric mean of a rollout's ratios (GSPO)."""
    ratio_cap: Annotated[float, Meta(ge=0)] = 0.0
    """Largest ratio outside the clip. It bounds the loss of unlikely wrong tokens; 0: no cap."""
    entropy_threshold: Annotated[float, Meta(ge=0)] = 0.0
    """Entropy in nats above which `threshold` keeps a token; leave it at 0 for other masks."""
    mask_norm: Literal["all", "selected"] = "all"
    """Whether `norm` counts all tokens of a rollout or only those that the mask keeps."""
    random_rewards: bool = False
    """True: rewards are drawn at random. A control: held-out accuracy must not rise. Also rehearses a model that gets
    nothing right."""


class Reward(Section, frozen=True):
    """[grpo.reward]: options of the parts of the reward, and limits for functions of your own."""

    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Part -> its options, in a section of its own: `[grpo.reward.options.regex]` (docs/rewards.md)."""
    on_error: Literal["stop", "skip"] = "stop"
    """If a part cannot be computed: end the run (exit code 87), or leave the rollout out of training and count it."""
    solved_at: float | Literal["full"] = "full"
    """Total reward from which a held-out question counts as solved; `full`: each part gives the most it can, where a
    function gives 1 and penalties do not count."""
    timeout_s: Annotated[Seconds, FREE] = 60.0
    """Time limit of one call of a function."""
    memory_gib: Annotated[float, Meta(gt=0), FREE] = 4.0
    """Memory limit of the process that runs your functions."""
    threads: Annotated[Positive, FREE] = 16
    """Calls of your functions that run side by side."""
    files: tuple[str, ...] = ()
    """Set by the program: the hash of each function's file, so that a changed function needs --accept-changes."""


class Environment(Section, frozen=True):
    """[grpo.environment]: what answers the model in rollouts of several turns (docs/environments.md)."""

    name: Annotated[str, FIXED] = ""
    """FILE.py:NAME or MODULE:NAME of your class, `guess`, `calculator`, or `verifiers:ID`; empty: none. Its rewards are
    the part `environment`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, in a section of its own: `[grpo.environment.options]`."""
    max_turns: Positive = 8
    """Replies of one episode, at most. All that is said in it has room in sampling.max_completion_tokens."""


class Grpo(Section, frozen=True):
    """[grpo]: group relative policy optimisation (arXiv 2402.03300). Clip bounds and minibatches are in [optimizer]."""

    groups_per_step: Positive = 2
    """Problems of one step (N). With `dynamic_sampling`, only those that teach something count."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one problem (G). They are compared with each other, so at least two."""
    advantage: Literal["group_std", "group_std_eps", "mean_only", "batch_std", "rloo"] = "group_std"
    """Divisor of reward - mean: the group's deviation, that + 1e-4 (TRL), none (Dr. GRPO), the batch's, (G-1)/G."""
    min_std: Annotated[float, Meta(gt=0)] = 0.1
    """Smallest divisor of `group_std` and `batch_std`, so that small differences of shaped rewards stay small."""
    uniform: Literal["skip", "keep", "baseline"] = "skip"
    """Groups whose rewards are all equal: skip them before any forward pass, keep them at 0, or use (mean - 0.5) /
    2."""
    dynamic_sampling: bool = False
    """Replace uniform groups by further problems, until `groups_per_step` teach something (DAPO)."""
    max_extra_rounds: Count = 3
    """Rounds of further draws in one step."""
    uniform_patience: Annotated[Positive, FREE] = 20
    """Steps in a row without a group that teaches, after which the run names the likely reasons."""
    norm: Literal["token", "sequence", "constant"] = "token"
    """Weight of a token: 1 / tokens of the update (DAPO), 1 / (rollouts * own tokens) (GRPO), or 1 / (rollouts *
    longest allowed)."""
    segment_tokens: Annotated[Count, FIXED] = 0
    """Tokens that a rollout draws in one step at most; it goes on in the next one. 0: each ends in its step."""
    truncated: Literal["mask", "keep"] = "mask"
    """Rollouts cut at the longest length: no gradient, but their reward counts in the mean; or like any other."""
    kl_coef: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of the k3 estimate of the KL against the model without its adapter; 0: not computed."""
    old_source: Literal["auto", "rollout", "trainer", "detach"] = "auto"
    """Old log-probs: the engine's, or the trainer's with `tis_cap`; `auto`: the exact one; `detach`: the ratio is 1."""
    inner_epochs: Positive = 1
    """Passes over a step's minibatches, each against the same old log-probs."""
    entropy_mask: Literal["off", "percentile", "threshold", "running"] = "off"
    """Tokens that get a gradient: all, the highest entropies of the update, those above a value or above a running
    mean."""
    entropy_keep: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of tokens that `percentile` and `running` keep; ties with the last kept token are kept too."""
    entropy_min_tokens: Count = 10
    """Tokens that each rollout keeps at least: those of its highest entropies."""
    problems: Annotated[Count, FIXED] = 0
    """Train only on the first N usable problems of the file; 0: on all."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """Unusable lines of the problem file: refuse the file and list them by number, or skip and count them."""
    verifier: Literal["exact", "math-verify"] = "exact"
    """How answers are compared: as exact numbers, or also by math-verify (extra `math`) for other expressions."""
    lenient_answers: bool = False
    """Use the last number of a completion that marks no answer."""
    rewards: Annotated[tuple[str, ...], Meta(min_length=1)] = ("correct",)
    """Parts of a rollout's reward: built-in ones (docs/rewards.md) and functions of your own, as FILE.py:NAME or
    MODULE:NAME."""
    reward_weights: tuple[float, ...] = ()
    """The weight of each part; empty: 1 each."""
    reward: Reward = Reward()
    environment: Environment = Environment()
    sent: Sent = Sent()
    variants: GrpoVariants = GrpoVariants()
