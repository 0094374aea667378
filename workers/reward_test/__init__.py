"""The worker of `rewards test`: calls reward functions on rows and completions, and says what most often goes wrong."""
