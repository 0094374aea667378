"""Runs under systemd: what the master tells it, and the unit that starts a run."""
