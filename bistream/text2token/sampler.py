"""Samples the next speech id of every sampling row, on the device, each row by its own session's settings and state.

In: float32 scores [n, V] of the speech head (V = ``TokenSpace.num_scores``) and the slots of the rows. Out: one head row per
sampling row. A session's sampling state is a row of ``SamplerState`` (one per slot) and stays on the device between steps:
input id of the next row, history, limits of the turn, seed. Called by the step runner.

Random numbers are counter-based: draw k of a session is a hash of (seed, number of ids decided so far, k). So they are
batch-invariant and do not depend on how rows were divided into steps.

Other samplers are possible, ``EagerRunner(model, settings, sampler)``: see ``Sampler``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bistream.errors import InvalidInputError
from bistream.text2token.engine import SamplingSpec, TokenSpace
from bistream.text2token.sequence import INACTIVE, NOT_FINITE, TurnStart

DEFAULT_HISTORY = 64  # decided ids kept per session: the largest win_size that ``RepetitionAwareSampler`` supports
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # splitmix64 (Steele, Lea, Flood 2014)
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
SMALLEST_TEMPERATURE = 1e-4  # below it sampling is greedy: scores divided by less would overflow
_UNIFORM_BITS = 23  # so few that the product of a uniform below 1 and a float32 total stays below the total
DRAWS_PER_ID = 2  # nucleus, redraw


def _signed(value: int) -> int:
    """The int64 with the same 64 bits; torch multiplies int64 modulo 2**64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 bit patterns (torch shifts arithmetically)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    """The finalizer of splitmix64 on int64 bit patterns."""
    value = (value ^ _shift_right(value, 30)) * _signed(_MIX_1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MIX_2)
    return value ^ _shift_right(value, 31)


def seed_key(seed: int) -> int:
    """Start of a seed's random sequence: mixed, so that neighbouring seeds are far apart."""
    value = (seed + 1) * _GOLDEN_GAMMA & ((1 << 64) - 1)
    value = (value ^ (value >> 30)) * _MIX_1 & ((1 << 64) - 1)
    value = (value ^ (value >> 27)) * _MIX_2 & ((1 << 64) - 1)
    return _signed(value ^ (value >> 31))


def uniforms(keys: Tensor, counters: Tensor) -> Tensor:
    """float32 in [0, 1), [n, DRAWS_PER_ID], of int64 keys [n] (``seed_key``) and counters [n]."""
    draws = torch.arange(1, DRAWS_PER_ID + 1, device=keys.device)
    index = counters[:, None] * DRAWS_PER_ID + draws
    mixed = _mix(keys[:, None] + index * _signed(_GOLDEN_GAMMA))
    return _shift_right(mixed, 64 - _UNIFORM_BITS).float() * 2.0**-_UNIFORM_BITS


def check_spec(spec: SamplingSpec, history_size: int, session_id: str) -> None:
    """Raise ``InvalidInputError`` unless every setting is in range."""
    limits = (
        ("top_p", 0.0 < spec.top_p <= 1.0, "above 0 and at most 1"),
        ("top_k", spec.top_k >= 1, "1 or more"),
        ("temperature", 0.0 <= spec.temperature <= 10.0, "between 0 and 10"),
        ("win_size", 0 <= spec.win_size <= history_size, f"between 0 and {history_size}"),
        ("tau_r", spec.tau_r >= 0.0 and math.isfinite(spec.tau_r), "0 or more"),
        ("seed", -(2**63) <= spec.seed < 2**63, "a 64-bit integer"),
    )
    for name, good, expected in limits:
        if not good:
            raise InvalidInputError(f"Sampling parameter {name} is {getattr(spec, name)}; it must be {expected}.", session_id)


class SamplerState:
    """State of all slots on the device; tensors have one row per slot and are written in place, never replaced.

    Slot ``num_slots`` (one more than there are sessions) is the filler slot, used by padding rows.
    """

    def __init__(self, num_slots: int, space: TokenSpace, history_size: int, device: torch.device) -> None:
        self.space = space
        self.device = device
        self.history_size = history_size
        self.session_ids = [""] * (num_slots + 1)  # on the host, for other samplers
        self.top_k_in_use = 1  # the largest of all sessions so far: candidates that ``choose`` must sort

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((num_slots + 1, *shape), dtype=dtype, device=device)

        # settings of the session
        self.top_p = column(torch.float32)
        self.top_k = column(torch.int64)
        self.temperature = column(torch.float32)
        self.win_size = column(torch.int64)
        self.min_repeats = column(torch.int64)  # an id with at least so many occurrences in the window is redrawn
        self.key = column(torch.int64)
        # the session so far
        self.history = column(torch.int64, history_size)  # ring of decided head rows: decided id i is at i % history_size
        self.num_decided = column(torch.int64)
        self.last_id = column(torch.int64)  # in TokenSpace: input of the slot's next decode row
        # the turn
        self.running = column(torch.bool)
        self.num_new = column(torch.int64)
        self.max_new = column(torch.int64)
        self.min_new = column(torch.int64)
        self.forbidden = column(torch.bool, len(space.specials))
        self.forbidden_early = column(torch.bool, len(space.specials))
        self.record_on_length = column(torch.int64)  # head row, or -1

    def start_turns(self, starts: Sequence[TurnStart]) -> None:
        """Write the host's decisions: new sessions (``reset``) and the limits of beginning turns."""
        self._reset([start for start in starts if start.reset is not None])
        slots = self._tensor([start.slot for start in starts])
        limits = [start.limits for start in starts]
        self.running[slots] = True
        self.num_new[slots] = 0
        self.max_new[slots] = self._tensor([start.max_new_ids for start in starts])
        self.min_new[slots] = self._tensor([limit.min_new_ids for limit in limits])
        specials = self.space.specials
        self.forbidden[slots] = self._tensor([[special in limit.forbidden for special in specials] for limit in limits])
        self.forbidden_early[slots] = self._tensor([[special in limit.forbidden_early for special in specials] for limit in limits])
        self.record_on_length[slots] = self._tensor([self._head_row(limit.record_on_length) for limit in limits])

    def _reset(self, starts: Sequence[TurnStart]) -> None:
        if not starts:
            return
        slots = self._tensor([start.slot for start in starts])
        specs = [start.reset.spec for start in starts if start.reset is not None]
        for start in starts:
            self.session_ids[start.slot] = "" if start.reset is None else start.reset.session_id
        self.top_p[slots] = self._tensor([spec.top_p for spec in specs])
        self.top_k[slots] = self._tensor([spec.top_k for spec in specs])
        self.temperature[slots] = self._tensor([float(spec.temperature) for spec in specs])
        self.win_size[slots] = self._tensor([spec.win_size for spec in specs])
        self.min_repeats[slots] = self._tensor([math.ceil(spec.win_size * spec.tau_r) for spec in specs])
        self.key[slots] = self._tensor([seed_key(spec.seed) for spec in specs])
        self.num_decided[slots] = 0
        self.top_k_in_use = max(self.top_k_in_use, *(spec.top_k for spec in specs))

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _head_row(self, token_id: int | None) -> int:
        return -1 if token_id is None else token_id - self.space.speech_offset

    def masked_log_probs(self, logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Log-softmax of float32 logits [n, V], the ids that the turn currently forbids at minus infinity (not renormalised).

        Also returns bool [n]: rows whose scores are not finite; these are treated as if all scores were equal.
        """
        finite = torch.isfinite(logits.amax(dim=-1))  # NaN and infinity pass through; all minus infinity has that maximum
        log_probs = torch.log_softmax(torch.where(finite[:, None], logits, 0.0), dim=-1)
        early = (self.num_new[slots] < self.min_new[slots])[:, None] & self.forbidden_early[slots]
        log_probs[:, -len(self.space.specials) :].masked_fill_(self.forbidden[slots] | early, -torch.inf)
        return log_probs, ~finite

    def window_counts(self, slots: Tensor, head_rows: Tensor) -> Tensor:
        """Occurrences of head_rows [n] among the last ``win_size`` decided ids of their slots. int64 [n]."""
        num_decided = self.num_decided[slots][:, None]
        age = torch.remainder(num_decided - 1 - torch.arange(self.history_size, device=self.device), self.history_size)
        in_window = age < torch.minimum(self.win_size[slots][:, None], num_decided)
        return ((self.history[slots] == head_rows[:, None]) & in_window).sum(dim=-1)

    def record(self, slots: Tensor, head_rows: Tensor, not_finite: Tensor) -> Tensor:
        """Record the chosen head rows [n]. Returns them, with ``INACTIVE`` and ``NOT_FINITE`` where these apply.

        The end of a turn is decided here, on the device: rows of later steps already in flight then change nothing.
        """
        running = self.running[slots]
        accepted = running & ~not_finite
        self._remember(slots, head_rows, accepted)
        yielded = accepted & (head_rows < self.space.speech_token_size)
        num_new = self.num_new[slots] + yielded
        at_limit = yielded & (num_new >= self.max_new[slots])
        forced = self.record_on_length[slots]
        self._remember(slots, forced, at_limit & (forced >= 0))
        self.num_new[slots] = num_new
        self.last_id[slots] = torch.where(yielded, head_rows + self.space.speech_offset, self.last_id[slots])
        self.running[slots] = yielded & ~at_limit
        return torch.where(accepted, head_rows, torch.where(running, NOT_FINITE, INACTIVE))

    def _remember(self, slots: Tensor, head_rows: Tensor, where: Tensor) -> None:
        num_decided = self.num_decided[slots]
        place = num_decided % self.history_size
        self.history[slots, place] = torch.where(where, head_rows, self.history[slots, place])
        self.num_decided[slots] = num_decided + where


class Sampler(Protocol):
    history_size: int  # decided ids per session that ``SamplerState`` must keep for this sampler
    compiles: bool  # with PyTorch's compiler; where not, its operations are recorded one by one

    def choose(self, log_probs: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        """One head row per row of log_probs [n, V] (masked, float32). int64 [n]. Must not write to ``state``."""


class RepetitionAwareSampler:
    """Nucleus sampling with a redraw of repeated ids (VALL-E 2; upstream ``ras_sampling``); temperature 0 is arg-max."""

    compiles = True

    def __init__(self, history_size: int = DEFAULT_HISTORY) -> None:
        self.history_size = history_size

    def choose(self, log_probs: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        draws = uniforms(state.key[slots], state.num_decided[slots])
        temperature = state.temperature[slots]
        greedy = temperature < SMALLEST_TEMPERATURE
        scores = log_probs / torch.where(greedy, 1.0, temperature)[:, None]
        chosen = self._draw_nucleus(scores, draws[:, 0], state, slots)
        repeated = state.window_counts(slots, chosen) >= state.min_repeats[slots]
        others = scores.scatter(1, chosen[:, None], -torch.inf)
        redrawn = draw(torch.softmax(others, dim=-1), draws[:, 1])
        chosen = torch.where(repeated, redrawn, chosen)
        return torch.where(greedy, log_probs.argmax(dim=-1), chosen)

    def _draw_nucleus(self, scores: Tensor, uniform: Tensor, state: SamplerState, slots: Tensor) -> Tensor:
        width = min(state.top_k_in_use, scores.shape[-1])
        probs, head_rows = nucleus(scores, state.top_p[slots], state.top_k[slots], width)
        return head_rows.gather(1, draw(probs, uniform)[:, None])[:, 0]


def nucleus(scores: Tensor, top_p: Tensor, top_k: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The candidates of each row, best first. scores [n, V], top_p [n], top_k [n] -> probabilities and head rows, each [n, width].

    An entry is taken while the sum of those before it is below top_p and fewer than top_k are taken; the others get probability 0.
    Probabilities are those of the full softmax, not renormalised.
    """
    probs, head_rows = torch.softmax(scores, dim=-1).topk(width, dim=-1)
    before = torch.nn.functional.pad(probs.cumsum(dim=-1)[:, :-1], (1, 0))
    rank = torch.arange(width, device=scores.device)
    taken = (before < top_p[:, None]) & (rank < top_k[:, None])
    return torch.where(taken, probs, 0.0), head_rows


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index drawn in proportion to weights [n, w] (non-negative, not all zero) by uniform [n] in [0, 1). int64 [n]."""
    sums = weights.cumsum(dim=-1)
    threshold = uniform[:, None] * sums[:, -1:]
    index = (sums <= threshold).sum(dim=-1).clamp_(max=weights.shape[-1] - 1)
    # a parallel prefix sum need not be monotonic in the last bit: never return an entry of weight 0
    impossible = weights.gather(1, index[:, None])[:, 0] <= 0
    return torch.where(impossible, weights.argmax(dim=-1), index)
