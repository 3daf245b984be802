"""The keeper of the server: starts, watches, probes, drains and stops Triton and everything that belongs to it.

Runs in the process of ``scripts/serve.py``. It communicates with the models only through the wire contract and ``control_files``.
"""
