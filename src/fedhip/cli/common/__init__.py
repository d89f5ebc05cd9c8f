"""What several commands share: options, tables, progress, rows of a client."""
