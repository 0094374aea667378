"""The process that sends metrics to trackers: `python -m workers.track`."""
