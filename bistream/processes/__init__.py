"""What the processes of one server share: control files, limits of the system, the log of their start."""
