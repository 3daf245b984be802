"""What a model process must not import at its start: torch's compiler costs it 1.7 s of a core, and the plain tier does not need it. Nor
does a server without the watermark import that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from bistream.checkpoints.config import FlowConfig
from bistream.checkpoints.reader import read_config
from bistream.token2mel.flow import FlowModel

UNNEEDED = ("torch._dynamo", "torch._inductor", "sympy", "perth", "bistream.watermark")
LOAD = {
    "token2wav": "from bistream.token2wav.factory import load_renderer as load",
    "llm_bistream": "from bistream.text2token.factory import load_parts as load",
}


def test_models_load_without_the_compiler(tiny_model_dir: Path) -> None:
    """One process loads one after the other; what a model imports is in its line."""
    code = "import os, sys\nfrom bistream.config import RuntimeConfig\n"
    for model, statement in LOAD.items():
        code += f"{statement}\nload(RuntimeConfig(model_dir=sys.argv[1], device='cpu', num_threads=1, max_sessions=2))\n"
        code += f"print('{model}', *(name for name in {UNNEEDED} if name in sys.modules), flush=True)\n"
    code += "os._exit(0)"  # the engine has a thread
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model_dir)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == list(LOAD), done.stderr


def test_a_new_flow_begins_with_the_embeddings_of_torch(tiny_model_dir: Path) -> None:
    """Training starts from them."""
    sizes: FlowConfig = read_config(tiny_model_dir).flow
    torch.manual_seed(3)
    flow = FlowModel(sizes)
    torch.manual_seed(3)
    assert torch.equal(flow.token_embedding.weight, nn.Embedding(sizes.vocab_size, sizes.input_size).weight)
    assert flow.token_embedding.weight.requires_grad
