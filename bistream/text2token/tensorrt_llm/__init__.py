"""The engine that lets NVIDIA TensorRT-LLM run the language model (``engine: tensorrt_llm``). It has never been run on a GPU.

TensorRT-LLM owns its step loop and has no session that outlives a request. So a turn is a request whose prompt is the whole sequence, of
which the KV cache manager reuses what it still has. ``docs/tensorrt_llm.md`` says what the engine can do.
"""
