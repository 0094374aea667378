"""The worker that writes models for other programs: `python -m workers.export`."""
