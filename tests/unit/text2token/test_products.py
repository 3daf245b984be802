"""Products with packed weights: those of PyTorch but for rounding, and a row's bits whatever its company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token.products import packed, product
from tests.unit.text2token.tiny import tiny_model

WIDTHS = st.sampled_from([8, 60, 64, 96, 123, 256, 300])


@given(st.integers(1, 40), WIDTHS, WIDTHS, st.booleans(), st.integers(0, 1000))
@settings(max_examples=10)
def test_a_product_with_packed_weights_is_the_exact_one(rows: int, width: int, outputs: int, has_bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    given_rows, weight = torch.randn(rows, width, generator=generator), torch.randn(outputs, width, generator=generator)
    bias = torch.randn(outputs, generator=generator) if has_bias else None
    exact = torch.nn.functional.linear(given_rows.double(), weight.double(), None if bias is None else bias.double())
    scale = width**0.5  # of the sums; float32 rounds each of ``width`` additions
    with torch.inference_mode():
        torch.testing.assert_close(product(given_rows, packed(weight), bias).double(), exact, rtol=0, atol=width * 2.0**-24 * scale)
        assert torch.equal(product(given_rows, weight, bias), torch.nn.functional.linear(given_rows, weight, bias))


@pytest.mark.parametrize(("outputs", "width"), [(192, 64), (123, 64), (512, 256), (64, 1024)])
def test_a_row_has_the_same_bits_alone_and_among_others(outputs: int, width: int) -> None:
    weight, bias, rows = packed(torch.randn(outputs, width)), torch.randn(outputs), torch.randn(40, width)
    if not weight.is_mkldnn:
        pytest.skip("on this processor weights are not packed")
    with torch.inference_mode():
        together = product(rows, weight, bias)
        for start, stop in ((0, 1), (39, 40), (3, 5), (7, 10), (0, 4), (1, 9), (0, 17)):
            assert torch.equal(product(rows[start:stop], weight, bias), together[start:stop])


def test_only_what_a_cpu_multiplies_in_float32_is_packed_and_only_once() -> None:
    weight = torch.randn(8, 8)
    once = packed(weight)
    assert packed(once) is once
    half = weight.to(torch.bfloat16)
    assert packed(half) is half
    layer = tiny_model().weights.packed().layers[0]
    assert layer.gate_up_weight.is_mkldnn == once.is_mkldnn and not layer.qkv_bias.is_mkldnn and not layer.input_norm.is_mkldnn
