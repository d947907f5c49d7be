"""Fault suites: each breaks something on purpose, many times, and checks that no acknowledged record suffers.

A suite is a module with `run(seed, trials, folder) -> Trials`. `suites.py` lists them with their counts; `make test`
runs a slice of each and proves that its planted bug turns it red, `make torture` runs the full counts.
"""
