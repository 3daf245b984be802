"""Protocols that voice agents speak already (OpenAI, ElevenLabs, Deepgram, Cartesia, DashScope) and a web page, before bistream servers.

A process of its own (``python -m interfaces``), which reaches the servers over gRPC as any client does; docs/interfaces.md.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before grpc is imported: its core writes a line for each attempt to reach a lost server
