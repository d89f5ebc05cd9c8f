"""What methods share: batched training of all clients at once, closed forms, protocol, priors."""
