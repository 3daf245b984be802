"""A request's sampling settings, completed by the checkpoint's."""

from __future__ import annotations

from dataclasses import replace

from bistream.checkpoint_config import LanguageModelConfig
from bistream.limits import check_sampling
from bistream.text2token.engine import SamplingSpec
from bistream.types import Sampling


def make_sampling_spec(sampling: Sampling, sizes: LanguageModelConfig) -> SamplingSpec:
    """A session's sampling settings; the checkpoint's values are the defaults. Raises ``InvalidInputError`` for unusable values."""
    top_k = sizes.top_k if sampling.top_k is None else sampling.top_k
    top_p = sizes.top_p if sampling.top_p is None else sampling.top_p
    check_sampling(replace(sampling, top_k=top_k, top_p=top_p))
    return SamplingSpec(top_p, top_k, sizes.win_size, sizes.tau_r, sampling.temperature, sampling.seed)
