"""The evaluation worker: `python -m workers.evaluate SPEC`."""
