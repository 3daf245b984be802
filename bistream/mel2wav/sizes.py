"""Sizes that the vocoder's own kernels use, and their requirements on the network. No torch."""

from __future__ import annotations

from bistream.checkpoints.config import VocoderConfig

MEL_BINS = 80
MOST_BLOCKS = 3  # residual blocks of a stage
_GAP_ROUND = 32  # positions
_SLICE = 64  # channels


def padded_width(channels: int) -> int:
    """Channels of activations in memory: the kernels divide them by powers of two. Those beyond the network's own are zeros."""
    return max(_SLICE, 1 << (channels - 1).bit_length())


def stage_gap(config: VocoderConfig) -> int:
    """Zeros between the rows of a packed batch: more than the reach of any convolution of a stage."""
    kernels = (*config.resblock_kernel_sizes, *config.source_resblock_kernel_sizes)
    dilations = (*config.resblock_dilation_sizes, *config.source_resblock_dilation_sizes)
    reach = max((kernel - 1) * max(members) // 2 for kernel, members in zip(kernels, dilations, strict=True))
    return reach // _GAP_ROUND * _GAP_ROUND + _GAP_ROUND


def spectrum_width(config: VocoderConfig) -> int:
    """Channels of spectra in memory: one half for real and one for imaginary parts, or magnitudes and phases."""
    return 2 << (config.istft_n_fft // 2).bit_length()


def graphs_need(config: VocoderConfig) -> tuple[str, ...]:
    """Requirements of the kernels that these sizes do not meet, as noun phrases; empty for CosyVoice2-0.5B."""
    rules = (
        (config.in_channels == MEL_BINS, f"{MEL_BINS} mel bins"),
        (config.istft_n_fft in (16, 32, 64), "an inverse Fourier transform of 16, 32 or 64 samples"),
        (len(config.resblock_kernel_sizes) <= MOST_BLOCKS, f"at most {MOST_BLOCKS} residual blocks in a stage"),
    )
    return tuple(text for good, text in rules if not good)
