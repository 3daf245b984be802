"""Others' networks that judge a sound. Each is a module with ``load``, run by ``__main__`` in a process of the judges' environment."""
