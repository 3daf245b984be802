"""A port of the classes of TensorRT-LLM that the conversion uses, with their signatures, for tests. It only shares out tensors.

Signatures: NVIDIA/TensorRT-LLM, tensorrt_llm/models/qwen/model.py at 04a2cac, mapping.py and models/modeling_utils.py of version 1.2.
"""
