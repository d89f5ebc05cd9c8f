"""The server: its side of the round, the sites that answer, checkpoints, what it writes in the end."""
