"""The section [grpo]: training on problems with known answers; rollouts of one problem are compared. (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FIXED, FREE, Count, Positive, Section, Share


class Grpo(Section, frozen=True):
    """[grpo]: group relative policy optimisation (arXiv 2402.03300). Clip bounds and minibatches are [optimizer]'s."""

    groups_per_step: Positive = 2
    """Problems whose rollouts make one step (N), where `dynamic_sampling` counts those that teach something."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one problem (G): what each is compared with, so two at least."""
    advantage: Literal["group_std", "group_std_eps", "mean_only", "batch_std", "rloo"] = "group_std"
    """Divisor of reward - mean: the group's deviation, that + 1e-4 (TRL), none (Dr. GRPO), the batch's, (G-1)/G."""
    min_std: Annotated[float, Meta(gt=0)] = 0.1
    """Least divisor of `group_std` and `batch_std`: small differences of shaped rewards stay small."""
    std_ddof: Literal[0, 1] = 0
    """Deviations of the group as it is, or (1) as of a sample, which reproduces TRL."""
    uniform: Literal["skip", "keep", "baseline"] = "skip"
    """Groups whose rewards are all equal: left out before any forward pass, kept at 0, or (mean - 0.5) / 2 for each."""
    dynamic_sampling: bool = False
    """Draw further problems in place of uniform groups, until `groups_per_step` teach something (DAPO)."""
    max_extra_rounds: Count = 3
    """Rounds of such draws in one step."""
    uniform_patience: Annotated[Positive, FREE] = 20
    """Steps in a row without one group that teaches, after which the run says why that may be."""
    norm: Literal["token", "sequence", "constant"] = "token"
    """A token weighs 1 / tokens of the update (DAPO), 1 / (rollouts * own tokens) (GRPO), or * the most allowed."""
    denominator: Literal["kept", "all"] = "kept"
    """Whether rollouts that were left out count in it."""
    truncated: Literal["mask", "keep"] = "mask"
    """Rollouts cut at the longest length: no gradient, though their reward counts in the mean; or as any other."""
    kl_coef: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of the k3 estimate against the model without its adapter; 0: that is not computed."""
    kl_tokens: Literal["all", "selected"] = "all"
    """Whether the KL counts all tokens, or those that the entropy mask keeps; the head then reads no others."""
    low_entropy_kl: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of that KL for tokens that the entropy mask drops, beside `kl_coef`; 0: they have none of their own."""
    low_entropy_cov_share: Share = 0.0
    """Share of these whose advantage and log-prob stray from the mean most: they get `low_entropy_cov_kl`."""
    low_entropy_cov_kl: Annotated[float, Meta(ge=0)] = 0.0
    """Weight of the KL of that share; larger than `low_entropy_kl` holds them more firmly."""
    old_source: Literal["auto", "rollout", "trainer", "detach"] = "auto"
    """Old log-probs: of engine, or of trainer with `tis_cap`; `auto`: who is exact; `detach`: the ratio is 1."""
    tis_mode: Literal["token_truncate", "token_mask", "sequence_mask"] = "token_truncate"
    """Importance weights over `tis_cap`: are cut to it, drop their token, or the whole rollout by their product."""
    ratio_level: Literal["token", "sequence"] = "token"
    """What is clipped: each token's ratio, or for all of a rollout the geometric mean of them (GSPO)."""
    ratio_cap: Annotated[float, Meta(ge=0)] = 0.0
    """Most that a ratio counts outside the clip, which bounds losses of unlikely wrong tokens; 0: no cap."""
    inner_epochs: Positive = 1
    """Times that a step's minibatches are gone through, each time against the same old log-probs."""
    entropy_mask: Literal["off", "percentile", "threshold", "running"] = "off"
    """Which tokens get a gradient: all, the highest entropies of the update, those over a value or a running mean."""
    entropy_keep: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of tokens that `percentile` and `running` keep; those that tie with the last kept are kept too."""
    entropy_threshold: Annotated[float, Meta(ge=0)] = 0.0
    """Entropy in nats over which `threshold` keeps a token; 0 is for the other kinds of mask."""
    entropy_min_tokens: Count = 10
    """Tokens that each rollout keeps at least, its highest ones."""
    mask_norm: Literal["all", "selected"] = "all"
    """Whether `norm` counts all tokens of a rollout or those that the mask keeps."""
    problems: Annotated[Count, FIXED] = 0
    """Train on the first so many usable problems of the file alone; 0: on all."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """Lines of the problem file that cannot be used: refused by number, or left out and counted."""
    verifier: Literal["exact", "math-verify"] = "exact"
    """What compares answers: exact numbers alone, or math-verify (extra `math`) for expressions that are none."""
    lenient_answers: bool = False
    """Take the last number of a completion that marks no answer."""
    format_reward: Annotated[float, Meta(ge=0)] = 0.0
    """Reward for thoughts that end once and a number in a box after them, right or wrong."""
    length_penalty: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Taken off a right answer's reward, times its share of the longest. Wrong ones would learn length alone."""
    random_rewards: bool = False
    """True: every reward is a coin's. A control: held-out accuracy must not rise. Also walks the path of a model that
    gets nothing right."""
    sent: Annotated[bool, FIXED] = False
    """Order the problems from easy to hard by the semantic entropy of the first policy's answers (SENT)."""
    sent_samples: Annotated[int, Meta(ge=2)] = 8
    """Answers to each problem that this is measured on (M)."""
    sent_stages: Annotated[int, Meta(ge=1, le=8), FIXED] = 2
    """Equal parts of the ordered problems; they are opened one after another."""
    sent_saturated: Annotated[Literal["thin", "keep", "drop"], FIXED] = "thin"
    """Problems that are always solved, and the same way: a twentieth of them stays, all, or none."""
    sent_replay: Share = 0.2
    """Share of draws that go back to earlier stages."""
    sent_min_steps: Positive = 50
    """Steps of a stage before the next may open."""
    sent_max_steps: Positive = 500
    """Steps of a stage after which the next opens in any case."""
    sent_accuracy: Share = 0.75
    """Running mean of the share of right answers that opens the next stage."""
    sent_uniform: Share = 0.6
    """Running mean of the share of uniform groups that opens the next stage: this one has little left to teach."""
    sent_on_stale: Annotated[Literal["rebuild", "fail", "shuffle"], FREE] = "rebuild"
    """Where the measured order is of another model, file or setting: measure again, refuse, or train without order."""
