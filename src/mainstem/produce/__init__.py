"""The way in: the producer library and the gateway that admits what it sends."""
