"""The app's two sides."""
