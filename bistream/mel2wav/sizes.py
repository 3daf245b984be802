"""Requirements of the vocoder's own kernels on the network. No torch."""

from __future__ import annotations

from bistream.checkpoints.config import VocoderConfig

MEL_BINS = 80
GAP = 32  # zeros between the rows of a packed batch: more than the reach of any convolution


def kernels_need(config: VocoderConfig) -> tuple[str, ...]:
    """Requirements of the kernels that these sizes do not meet, as noun phrases; empty for CosyVoice2-0.5B."""
    layers = {len(dilations) for dilations in config.resblock_dilation_sizes}
    widths = [config.f0_channels, *(config.base_channels // 2**stage for stage in range(len(config.upsample_rates) + 1))]
    reaches = [
        (kernel - 1) * dilation // 2
        for kernels, dilations in (
            (config.resblock_kernel_sizes, config.resblock_dilation_sizes),
            (config.source_resblock_kernel_sizes, config.source_resblock_dilation_sizes),
        )
        for kernel, members in zip(kernels, dilations, strict=True)
        for dilation in members
    ]
    rules = (
        (all(width >= 64 and (width & (width - 1)) == 0 for width in widths), "widths of 64 times a power of two"),
        (max(reaches) < GAP, f"convolutions that reach less than {GAP} positions"),
        (config.in_channels == MEL_BINS, f"{MEL_BINS} mel bins"),
        (config.istft_n_fft == 16, "an inverse Fourier transform of size 16"),
        (len(config.resblock_kernel_sizes) <= 3, "at most 3 residual blocks in a stage"),
        (len(layers) == 1, "residual blocks of equal depth"),  # they run in parallel, layer by layer
    )
    return tuple(text for good, text in rules if not good)
