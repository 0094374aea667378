"""Data sets of tasks, the master's side: the worker that reads and writes them, and how they are shown."""
