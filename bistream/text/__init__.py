"""Text of a session: cleaned, cut, and turned into token ids as it arrives."""
