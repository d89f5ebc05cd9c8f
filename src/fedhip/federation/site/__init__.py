"""A site's side of the round."""
