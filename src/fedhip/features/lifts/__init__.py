"""Wider features: a lift of given width, drawn from a seed, and what it costs."""
