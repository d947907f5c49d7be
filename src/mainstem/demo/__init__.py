"""The demonstration: a server, producers and consumers as processes of their own, and an account of every record."""
