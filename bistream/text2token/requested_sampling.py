"""A request's sampling settings, completed by the checkpoint's."""

from __future__ import annotations

from dataclasses import replace

from bistream.checkpoints.config import LanguageModelConfig
from bistream.contract.codec import check_values
from bistream.contract.fields import LLM_BISTREAM
from bistream.text2token.engine import SamplingSpec
from bistream.types import GenerationOptions


def make_sampling_spec(options: GenerationOptions, sizes: LanguageModelConfig) -> SamplingSpec:
    """A session's sampling settings; the checkpoint's values are the defaults. Raises ``InvalidInputError`` for unusable values."""
    top_k = sizes.top_k if options.top_k is None else options.top_k
    top_p = sizes.top_p if options.top_p is None else options.top_p
    check_values(LLM_BISTREAM, replace(options, top_k=top_k, top_p=top_p))
    return SamplingSpec(top_p, top_k, sizes.win_size, sizes.tau_r, options.temperature, options.seed)
