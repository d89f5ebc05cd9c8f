"""The vision transformer that makes features: its layers, its pooling, its files."""
