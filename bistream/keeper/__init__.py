"""The keeper of the server: starts Triton, watches and probes it, drains and ends it, and everything that belongs to it.

Code of one process, that of ``scripts/serve.py``. It talks to the models through the wire contract and ``control_files`` alone.
"""
