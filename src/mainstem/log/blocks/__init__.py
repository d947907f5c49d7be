"""Where the bytes of batches are: files that are immutable once sealed."""
