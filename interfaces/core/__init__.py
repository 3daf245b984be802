"""What every protocol stands on: speaking a text that arrives in pieces, voices, servers, limits and drain. No web framework."""
