"""Runs of very many clients: a thousand models to a file, and what is known of these clients beside them."""
