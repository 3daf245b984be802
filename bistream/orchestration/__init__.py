"""What happens to a session between client and models: admission, stages, playback, endings. No tensors, no Triton."""
