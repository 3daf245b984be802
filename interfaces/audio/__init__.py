"""Audio for clients in the format they ask for, and recordings that they upload."""
