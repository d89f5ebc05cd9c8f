"""What is done with runs once they are on disk: the report."""
