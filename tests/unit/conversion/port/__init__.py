"""The folder that stands on the path where a test has TensorRT-LLM "installed"."""
