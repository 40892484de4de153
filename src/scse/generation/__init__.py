"""Generation under a cache over (loop, body, position)."""
