"""Knobs that got another name: the old one is refused with the new one. (pure)

Knobs that only moved into another section need no line: whoever reads a profile finds them by their key.
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
}
"""Old full name -> new full name."""
