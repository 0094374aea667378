"""The process that draws curves for other programs: `python -m workers.track`."""
