"""Commands about one run: make it, look at it, answer with it, change it, check it."""
