"""What carries messages: the engine, its server behind a proxy, and a site's node."""
