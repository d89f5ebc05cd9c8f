"""Whether a sum can be trusted, by the rows of those who are in it."""
