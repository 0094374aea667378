"""Evaluations, outside the worker: chooses the target, follows progress, and renders results."""
