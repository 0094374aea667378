"""Arithmetic in words for a pocket model: stories from a seed, a vocabulary, a corpus, a gate, and the weights."""
