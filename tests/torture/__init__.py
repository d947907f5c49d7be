"""`make torture`: the full counts of the fault suites, in chunks, with a row in docs/results/faults.csv for each."""
