"""gRPC over HTTP/2 in one event loop: what the gate needs of RFC 9113 and of gRPC's wire format, as a server and as a client.

Why not grpc's own asyncio library: it moves every message between three threads, which took twice the CPU time for 256 callers in real
time (docs/gateway.md). Header compression is left to the ``hpack`` package. ``frames`` and ``frame_reader`` know bytes, ``connection`` one
connection of either role, ``stream`` messages and windows, ``server`` and ``client`` the two roles.
"""
