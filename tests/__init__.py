"""The tests, as a package, so that `python -m tests.torture` works."""
