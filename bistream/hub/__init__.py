"""Downloads a checkpoint through the libraries of Hugging Face and ModelScope, and checks one that is there.

The libraries (``requirements/hub.txt``) are imported only when a download begins: no model of the server needs them.
"""
