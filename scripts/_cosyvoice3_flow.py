"""Random ``flow.pt`` and ``hift.pt`` of CosyVoice3, with the keys and shapes of the released files. Called by ``make_checkpoint.py``.

Sizes go in; activations stay near one, and the speech is noise.
"""

from __future__ import annotations

import torch

from bistream.checkpoint_config import CausalVocoderConfig, DitConfig, DitFlowConfig
from bistream.mel2wav.causal import weights as vocoder_weights
from bistream.token2mel.dit import weights as flow_weights
from bistream.token2mel.dit.estimator import rotation
from scripts._random_weights import Drawer, Scale, Shape, common_scale, fan_in_scale, vocoder_state

# Four steps of the solver: with random weights ten give no other speech, and take more than twice as long.
TINY_FLOW = DitFlowConfig(dit=DitConfig(dim=64, depth=2, heads=4, dim_head=16), lookahead_channels=48, n_timesteps=4)
TINY_VOCODER = CausalVocoderConfig(base_channels=48, f0_channels=32)

MODULATION_GAIN = 0.3  # of shifts, scales and gates: what a block adds stays below what it gets
_ROTARY = "decoder.estimator.rotary_embed.inv_freq"


def flow_state(config: DitFlowConfig, drawer: Drawer) -> dict[str, torch.Tensor]:
    """``flow.pt``, float32 on the CPU."""

    def rule(key: str, shape: Shape) -> Scale:
        if key == "spk_embed_affine_layer.weight":
            return Scale(1.0)  # the embedding is normalised to length one before it
        if "_norm.linear.weight" in key or key.endswith("norm_out.linear.weight"):
            return fan_in_scale(shape, gain=MODULATION_GAIN)
        return common_scale(key, shape)

    state = drawer.state_dict("flow.pt", flow_weights.expected_shapes(config), rule)
    state[_ROTARY] = rotation(torch.tensor([1]), 1, config.dit.dim_head)[0, 0]
    return state


def hift_state(config: CausalVocoderConfig, drawer: Drawer) -> dict[str, torch.Tensor]:
    """``hift.pt``, float32 on the CPU."""
    return vocoder_state(drawer, vocoder_weights.expected_shapes(config), config)
