"""What is summed, as vectors of whole numbers: the same at the sites and the server."""
