"""Data sets of tasks, the master's side: starts the worker that reads and writes them, and renders the results."""
