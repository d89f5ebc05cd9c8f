"""What the sites agree on, whose keys they are, and how they come to know it."""
