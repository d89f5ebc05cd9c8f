"""The server's side of the round."""
