"""Fetches a model of the Hugging Face hub before a run begins."""
