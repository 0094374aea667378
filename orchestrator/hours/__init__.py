"""How long a step takes, and hours for many: predicted before a run, compared with what was measured after it."""
