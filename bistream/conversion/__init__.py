"""The language model's ``llm.pt`` to the merged Hugging Face checkpoint, and back.

The merged checkpoint is what engines take that are fed with ids alone (TensorRT-LLM, vLLM, transformers): one vocabulary of text,
speech and special ids, in the layout of ``yuekai/cosyvoice2_llm``.
"""
