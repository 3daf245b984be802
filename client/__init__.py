"""Clients of the speech server. Need numpy, tritonclient[grpc] and soundfile, and of ``bistream`` only what needs numpy alone."""
