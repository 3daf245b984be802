"""The families, and how unsupported models are recognised."""

from __future__ import annotations

from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.spark import SPARK

FAMILIES = (COSYVOICE2, COSYVOICE3, SPARK)
DEFAULT_FAMILY = COSYVOICE2  # where a process is given no model directory, or one that does not tell

# Predecessors whose files have the same names: by the class of the language model in the yaml, and by a file.
OTHER_MODELS = {"TransformerLM": "CosyVoice"}
OTHER_FILES = {"speech_tokenizer_v1.onnx": "CosyVoice"}
# Files of any family.
YAML_NAMES = tuple(name for family in FAMILIES for name in family.yaml_names)
TEXT_CONFIGS = tuple(dict.fromkeys(f"{family.text_directory}/config.json" for family in FAMILIES))
