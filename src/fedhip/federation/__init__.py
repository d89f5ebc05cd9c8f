"""One round over the network, between sites that do not trust the server with their statistics."""
