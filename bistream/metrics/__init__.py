"""What the processes of a server count: from the recorders that the stages call to the text for Prometheus. Standard library only."""
