"""The process that tells a person what happens to a run: `python -m workers.notify`."""
