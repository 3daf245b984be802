"""Clients of the speech server. Need numpy, tritonclient[grpc], soundfile and the parts of ``bistream`` that need only numpy."""
