"""What `init` does: it looks at data, chooses settings, writes a profile and a reward file, and tries them."""
