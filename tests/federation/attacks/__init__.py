"""Attacks that were carried out against earlier versions; each is to fail."""
