"""Parts of HTTP by themselves."""
