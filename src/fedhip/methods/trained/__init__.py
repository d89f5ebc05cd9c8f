"""Methods that train by gradients, round after round: one file each."""
