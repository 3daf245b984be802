"""The command ``bistream`` and its sub-commands."""
