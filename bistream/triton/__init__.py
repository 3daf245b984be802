"""Code that runs inside the model processes of Triton's Python backend, shared by the ``model.py`` files of ``model_repo/``.

``pb_utils`` (``triton_python_backend_utils``) exists only inside the Python backend's process, so it is always passed in,
never imported here: every module can be imported and tested without a server.
"""
