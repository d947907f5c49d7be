"""The index of all entries, sequences and cursors, made by applying flushes in order."""
