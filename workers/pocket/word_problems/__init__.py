"""Word problems for a pocket model: seeded stories, vocabulary, corpus, held-out problems and weights."""
