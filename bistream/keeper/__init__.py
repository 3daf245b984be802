"""The keeper of the server: starts, watches, probes, drains and stops Triton, the gate before it, and everything that belongs to them.

Runs in the process of ``scripts/serve.py``. It communicates with the models only through the wire contract and ``control_files``, and with
the gate through its command line, signals and readiness.
"""
