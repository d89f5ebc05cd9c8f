"""`fedhip federation`: its commands, one module each for those that make agreements and keys."""
