"""The worker that completes prompts of a person: `python -m workers.generate`."""
