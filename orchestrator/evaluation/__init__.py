"""Evaluations, the master's side: what is evaluated, the worker that does it, and how it is shown."""
