"""A stand-in of ``trtllm-build``: the options that it has (tensorrt_llm/commands/build.py at 008b2b8), the model class it loads, no engine.

python builder.py MISSING ... -- ARGUMENTS    MISSING: options that this version does not have
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

OPTIONS = (
    "checkpoint_dir output_dir model_cls_file model_cls_name max_batch_size max_input_len max_seq_len max_num_tokens max_beam_width "
    "kv_cache_type workers gemm_plugin tokens_per_block use_paged_context_fmha"
).split()


def main() -> int:
    separator = sys.argv.index("--")
    missing, arguments = sys.argv[1:separator], sys.argv[separator + 1 :]
    parser = argparse.ArgumentParser()
    for name in OPTIONS:
        if name not in missing:
            parser.add_argument(f"--{name}")
    options = parser.parse_args(arguments)
    sys.stdout.write("[TRT-LLM] building\n")
    module = SourceFileLoader("models", options.model_cls_file).load_module()
    model_class = getattr(module, options.model_cls_name)
    from tensorrt_llm.mapping import Mapping  # noqa: PLC0415  (the port, on the path)

    checkpoint = json.loads((Path(options.checkpoint_dir) / "config.json").read_text())
    if checkpoint["vocab_size"] == 0:
        sys.stderr.write("Error: no vocabulary\n")
        return 3
    sizes = {name: checkpoint["mapping"][name] for name in ("tp_size", "pp_size")}
    mapping = Mapping(sizes["tp_size"] * sizes["pp_size"], **sizes)
    fields = {"mapping": mapping, **{name: checkpoint[name] for name in ("hidden_size", "vocab_size", "dtype")}}
    model = model_class(argparse.Namespace(**fields))
    head_bias = getattr(getattr(model, "lm_head", None), "bias", None)
    (Path(options.output_dir) / "config.json").write_text(json.dumps({"arguments": vars(options), "head_bias": head_bias}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
