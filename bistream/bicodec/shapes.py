"""Keys and shapes of ``BiCodec/model.safetensors``: 840 at the released sizes, in the release's spelling of weight norm.

``unused`` are those that only training needs. A few sizes stand in no file but this one: ``with_sizes_of`` reads them from shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bistream.bicodec.config import CodecConfig, FrameNetSizes, GeneratorSizes, SpeakerSizes
from bistream.bicodec.frame_nets import KERNEL, RESAMPLED_LAYERS
from bistream.bicodec.generator import DILATIONS
from bistream.bicodec.generator import KERNEL as WAVE_KERNEL
from bistream.bicodec.speaker import BLOCK_KERNEL, FIRST_KERNEL
from bistream.bicodec.speaker import DILATIONS as SPEAKER_DILATIONS
from bistream.errors import CheckpointError

FILE_NAME = "BiCodec/model.safetensors"
GAIN, DIRECTION = "weight_g", "weight_v"  # w = g v / |v|
COMPUTED = ("mel_transformer.spectrogram.window", "mel_transformer.mel_scale.fb")  # may be in a file, or not
_TRAINING = re.compile(r"postnet\.|quantizer\.cluster_size$|speaker_encoder\.speaker_encoder\.(pool|bn|linear)\.")

Shape = tuple[int, ...]
Items = Iterator[tuple[str, Shape]]


def unused(key: str) -> bool:
    """Whether a key is read in training alone."""
    return _TRAINING.match(key) is not None


def expected_shapes(config: CodecConfig) -> dict[str, Shape]:
    """Every key of the file."""
    quantizer, condition = config.quantizer, config.speaker.output_size
    shapes = dict(_encoder(config.encoder))
    shapes |= _normed_conv("quantizer.in_project", (quantizer.code_size, quantizer.input_size, 1))
    shapes |= _normed_conv("quantizer.out_project", (quantizer.input_size, quantizer.code_size, 1))
    shapes |= {"quantizer.codebook.weight": (quantizer.codes, quantizer.code_size), "quantizer.cluster_size": (quantizer.codes,)}
    shapes |= _speaker(config.speaker)
    shapes |= _prenet("prenet", config.prenet, condition)
    shapes |= _prenet("postnet", config.postnet, None)
    shapes |= _generator(config.generator)
    return shapes


def with_sizes_of(config: CodecConfig, shapes: Mapping[str, Shape]) -> CodecConfig:
    """The same with the sizes that only shapes tell. Raises ``CheckpointError`` where a key that tells one is missing."""
    ecapa, perceiver = "speaker_encoder.speaker_encoder", "speaker_encoder.perceiver_sampler"
    block, attention = f"{ecapa}.layer2.se_res2block", f"{perceiver}.layers.0"
    slices = _count(shapes, rf"{re.escape(block)}\.1\.convs\.\d+\.weight") + 1
    channels = _rows(shapes, f"{ecapa}.layer1.conv.weight")
    if channels % slices:
        raise CheckpointError(f"{FILE_NAME} has {channels} channels in {slices} slices ({block}.1); download it again.")
    speaker = replace(
        config.speaker,
        channels=channels,
        pooled_channels=_rows(shapes, f"{ecapa}.conv.weight"),
        scale=slices,
        gate_size=_rows(shapes, f"{block}.3.linear1.weight"),
        pooling_size=_rows(shapes, f"{ecapa}.pool.linear1.weight"),
        attention_layers=max(1, _count(shapes, rf"{re.escape(perceiver)}\.layers\.\d+\.0\.to_q\.weight")),
        attention_size=_rows(shapes, f"{attention}.0.to_q.weight"),
        feed_forward_size=_rows(shapes, f"{attention}.1.0.weight") // 2,
    )
    return replace(config, speaker=speaker)


def _rows(shapes: Mapping[str, Shape], key: str) -> int:
    if not shapes.get(key):
        raise CheckpointError(f"{FILE_NAME} lacks the key {key}; download it again.")
    return shapes[key][0]


def _count(shapes: Mapping[str, Shape], pattern: str) -> int:
    return sum(re.fullmatch(pattern, key) is not None for key in shapes)


def _layer(name: str, weight: Shape) -> Items:
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]


def _normed_conv(name: str, weight: Shape, bias: int | None = None) -> Items:
    yield f"{name}.{GAIN}", (weight[0], 1, 1)
    yield f"{name}.{DIRECTION}", weight
    yield f"{name}.bias", (bias or weight[0],)


def _norm(name: str, width: int, condition: int | None = None) -> Items:
    if condition is None:
        yield from _layer(name, (width,))
    else:
        yield from _layer(f"{name}.scale", (width, condition))
        yield from _layer(f"{name}.shift", (width, condition))


def _backbone(name: str, inputs: int, sizes: FrameNetSizes, layers: int, condition: int | None = None) -> Items:
    width = sizes.width
    yield from _layer(f"{name}.embed", (width, inputs, KERNEL))
    yield from _norm(f"{name}.norm", width, condition)
    for index in range(layers):
        block = f"{name}.convnext.{index}"
        yield f"{block}.gamma", (width,)
        yield from _layer(f"{block}.dwconv", (width, 1, KERNEL))
        yield from _norm(f"{block}.norm", width, condition)
        yield from _layer(f"{block}.pwconv1", (sizes.intermediate, width))
        yield from _layer(f"{block}.pwconv2", (width, sizes.intermediate))
    yield from _norm(f"{name}.final_layer_norm", width)


def _resampled(name: str, sizes: FrameNetSizes, sampler: str) -> Items:
    for index, ratio in enumerate(sizes.ratios):
        if ratio > 1:
            yield from _layer(f"{name}.{index}.0.{sampler}.1", (sizes.width, 1, 2 * ratio))
        yield from _backbone(f"{name}.{index}.1", sizes.width, sizes, RESAMPLED_LAYERS)


def _encoder(sizes: FrameNetSizes) -> Items:
    yield from _backbone("encoder.encoder", sizes.input_size, sizes, sizes.layers)
    yield from _resampled("encoder.downsample", sizes, "conv_downsampler")
    yield from _layer("encoder.project", (sizes.output_size, sizes.width))


def _prenet(name: str, sizes: FrameNetSizes, condition: int | None) -> Items:
    yield from _layer(f"{name}.linear_pre", (sizes.width, sizes.input_size))
    yield from _resampled(f"{name}.downsample", sizes, "de_conv_upsampler")
    yield from _backbone(f"{name}.vocos_backbone", sizes.width, sizes, sizes.layers, condition)
    yield from _layer(f"{name}.linear", (sizes.output_size, sizes.width))


def _generator(sizes: GeneratorSizes) -> Items:
    width = sizes.channels
    yield from _normed_conv("decoder.model.0", (width, sizes.input_size, WAVE_KERNEL))
    for stage, kernel in enumerate(sizes.kernels, start=1):
        block = f"decoder.model.{stage}.block"
        yield f"{block}.0.alpha", (1, width, 1)
        yield from _normed_conv(f"{block}.1", (width, width // 2, kernel), bias=width // 2)
        width //= 2
        for unit in range(2, 2 + len(DILATIONS)):
            for place, taps in ((0, WAVE_KERNEL), (2, 1)):
                yield f"{block}.{unit}.block.{place}.alpha", (1, width, 1)
                yield from _normed_conv(f"{block}.{unit}.block.{place + 1}", (width, width, taps))
    last = len(sizes.kernels) + 1
    yield f"decoder.model.{last}.alpha", (1, width, 1)
    yield from _normed_conv(f"decoder.model.{last + 1}", (1, width, WAVE_KERNEL))


def _batch_norm(name: str, width: int) -> Items:
    yield from _layer(name, (width,))
    for statistic in ("running_mean", "running_var"):
        yield f"{name}.{statistic}", (width,)
    yield f"{name}.num_batches_tracked", ()


def _speaker(sizes: SpeakerSizes) -> Items:
    name, size = "speaker_encoder", sizes.latent_size
    yield from _ecapa(f"{name}.speaker_encoder", sizes)
    yield from _perceiver(f"{name}.perceiver_sampler", sizes)
    yield from _layer(f"{name}.quantizer.project_in", (len(sizes.levels), size))
    yield from _layer(f"{name}.quantizer.project_out", (size, len(sizes.levels)))
    yield from _layer(f"{name}.project", (sizes.output_size, sizes.tokens * size))


def _ecapa(name: str, sizes: SpeakerSizes) -> Items:
    channels, pooled, width = sizes.channels, sizes.pooled_channels, sizes.channels // sizes.scale
    yield from _layer(f"{name}.layer1.conv", (channels, sizes.mel_bins, FIRST_KERNEL))
    yield from _batch_norm(f"{name}.layer1.bn", channels)
    for layer in range(2, 2 + len(SPEAKER_DILATIONS)):
        block = f"{name}.layer{layer}.se_res2block"
        for place in (0, 2):
            yield from _layer(f"{block}.{place}.conv", (channels, channels, 1))
            yield from _batch_norm(f"{block}.{place}.bn", channels)
        for index in range(sizes.scale - 1):
            yield from _layer(f"{block}.1.convs.{index}", (width, width, BLOCK_KERNEL))
            yield from _batch_norm(f"{block}.1.bns.{index}", width)
        yield from _layer(f"{block}.3.linear1", (sizes.gate_size, channels))
        yield from _layer(f"{block}.3.linear2", (channels, sizes.gate_size))
    yield from _layer(f"{name}.conv", (pooled, len(SPEAKER_DILATIONS) * channels, 1))
    yield from _layer(f"{name}.pool.linear1", (sizes.pooling_size, 3 * pooled, 1))
    yield from _layer(f"{name}.pool.linear2", (pooled, sizes.pooling_size, 1))
    yield from _batch_norm(f"{name}.bn", 2 * pooled)
    yield from _layer(f"{name}.linear", (sizes.output_size, 2 * pooled))


def _perceiver(name: str, sizes: SpeakerSizes) -> Items:
    size, attention, inner = sizes.latent_size, sizes.attention_size, sizes.feed_forward_size
    yield f"{name}.latents", (sizes.tokens, size)
    yield from _layer(f"{name}.proj_context", (size, sizes.pooled_channels))
    for index in range(sizes.attention_layers):
        layer = f"{name}.layers.{index}"
        yield f"{layer}.0.to_q.weight", (attention, size)
        yield f"{layer}.0.to_kv.weight", (2 * attention, size)
        yield f"{layer}.0.to_out.weight", (size, attention)
        yield from _layer(f"{layer}.1.0", (2 * inner, size))
        yield from _layer(f"{layer}.1.2", (size, inner))
    yield f"{name}.norm.gamma", (size,)
