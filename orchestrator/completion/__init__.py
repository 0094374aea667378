"""Completion in a shell: scripts that know commands and options, and look for runs and profiles by themselves."""
