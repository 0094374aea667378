"""The worker that completes a user's prompts: `python -m workers.generate`."""
