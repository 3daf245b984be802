"""The language model's weights to the merged Hugging Face checkpoint; ``llm.pt`` back from it, too.

The merged checkpoint is what engines take that are fed with ids alone (TensorRT-LLM, vLLM, transformers): one vocabulary of text,
speech and special ids, in the layout of ``yuekai/cosyvoice2_llm``.
"""
