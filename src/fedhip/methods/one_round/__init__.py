"""Methods whose clients send what they have to say once, or a few sums: one file each."""
