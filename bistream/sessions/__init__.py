"""The life of a session between the client and the models: admission, stages, playback, end. No tensors, no Triton."""
