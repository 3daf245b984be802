"""The gate: the process that clients reach instead of Triton. See docs/gateway.md.

A small asynchronous core (``gate``, ``conversation``, ``session``, ``admission``) that knows the wire contract and no web framework, and
doors that translate one protocol each (``grpc_server``, ``http_api``). ``upstream`` is the only module that talks to Triton. Imports
``bistream.contract`` and ``bistream.errors``, and never torch.
"""
