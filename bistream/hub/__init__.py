"""Downloads a checkpoint from Hugging Face or ModelScope: resumable, checked by checksum, complete or absent.

``download.py`` decides, ``huggingface.py`` and ``modelscope.py`` know the two hubs' libraries, which are imported only when a
download begins (``requirements/hub.txt``): no model of the server needs them.
"""
