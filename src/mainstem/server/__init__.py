"""The server process: listeners, sessions, life cycle."""
