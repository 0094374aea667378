"""The user's Python, called in a process of its own: reward functions and environments.

In reading order: `frames.py` how the two sides talk, and what they say of every call; `calls.py` the trainer's side;
`process.py` the process as that side sees it; `watcher.py` the process that watches, and ends what is left;
`serving.py` the process that calls the user's code; `imports.py` how it imports files; `errors.py` what can be wrong
with them; `kept.py` the calls that failed.
"""
