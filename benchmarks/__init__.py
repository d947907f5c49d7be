"""Benchmarks of mainstem, alone and side by side with its peers: ``python -m benchmarks --help``."""
