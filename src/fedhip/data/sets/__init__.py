"""Sets of images: the type, how each kind is read, and which are known by name."""
