"""Formats on disk and versions of the protocol: what earlier programs wrote is read, and who speaks an earlier version is understood."""
