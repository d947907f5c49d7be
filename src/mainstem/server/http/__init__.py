"""HTTP: the same log for whoever has no library of ours."""
