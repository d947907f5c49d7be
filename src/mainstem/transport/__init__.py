"""Connections: what a client needs of a log, and how it crosses a network."""
