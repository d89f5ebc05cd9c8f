"""Images as pixels: which files are images, how they are read, and the window of those of more than 8 bits."""
