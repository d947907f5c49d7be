"""The public test kit: a simulated clock and the checker of histories."""
