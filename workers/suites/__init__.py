"""Held-out suites: their questions, prompts and judging, and what must therefore never be trained on."""
