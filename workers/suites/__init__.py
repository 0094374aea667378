"""Held-out suites: their questions, how a model is asked, who is right, and what may therefore never be trained on."""
