"""The object users hold: embedded or remote, the same."""
