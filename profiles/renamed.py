"""Renamed knobs: a profile that uses an old name is refused with the new one. (pure)

Knobs that only moved into a section inside their own need no line: whoever reads a profile finds them by their key.
"""

RENAMED = {
    "grpo.sent": "grpo.sent.enabled",
    "grpo.sent_samples": "grpo.sent.samples",
    "grpo.sent_stages": "grpo.sent.stages",
    "grpo.sent_saturated": "grpo.sent.saturated",
    "grpo.sent_replay": "grpo.sent.replay",
    "grpo.sent_min_steps": "grpo.sent.min_steps",
    "grpo.sent_max_steps": "grpo.sent.max_steps",
    "grpo.sent_accuracy": "grpo.sent.accuracy",
    "grpo.sent_uniform": "grpo.sent.uniform",
    "grpo.sent_on_stale": "grpo.sent.on_stale",
    "grpo.format_reward": "grpo.rewards",
    "grpo.length_penalty": "grpo.rewards",
    "optimizer.loss_divisor": "azr.loss_divisor",
    "optimizer.loss_constant": "azr.loss_constant",
}
"""Old full name -> new full name."""
