"""What carries messages: the engine, its server behind a door, and a site's node."""
