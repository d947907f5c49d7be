"""HTTP against a real server process."""
