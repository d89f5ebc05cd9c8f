"""What the commands do: processes that serve, take part, run a round and end."""
