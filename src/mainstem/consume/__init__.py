"""The way out: the consumer library and the feed that serves it."""
