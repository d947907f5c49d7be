"""What earlier programs wrote to disk is read, and who speaks an earlier version of the protocol is understood."""
