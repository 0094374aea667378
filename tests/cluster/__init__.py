"""Runs on a real Slurm: three nodes on this host, with daemons of their own."""
