"""Conversions of the language model's checkpoint: ``llm.pt`` to the merged Hugging Face checkpoint, back, and on to TensorRT-LLM.

The merged checkpoint is what engines take that are fed with ids alone (TensorRT-LLM, vLLM, transformers): one vocabulary of text,
speech and special ids, in the layout of ``yuekai/cosyvoice2_llm``.
"""
