"""The shipped voice's language model in recorded steps tells the text tokens that the plain form in float32 looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.reader import read_config
from bistream.gpu.tier import Tier
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import TokenSpace, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.head_scores import text_weights
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import TokenLayout
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.requested_sampling import make_sampling_spec
from bistream.text2token.sizes import graphs_need
from bistream.text2token.step_runners import BLOCK_SIZES, make_step_runner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import load_weights
from bistream.types import GenerationOptions
from training.heldout import sentences

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
    pytest.skip("needs a GPU of compute capability 8.0", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

VOICE_DIR = Path(__file__).resolve().parents[2] / "assets" / "voice"
DEVICE, CPU = torch.device("cuda"), torch.device("cpu")
LEAST_EQUAL = 0.97  # where two text tokens weigh almost the same, 16 bit decides otherwise
SENTENCES = sentences("b")[:12]
LONGEST = 1024


class Sink:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.left: list[int] = []
        self.result: TurnResult | None = None

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self.ids += ids
        if texts_left is not None:
            self.left.append(texts_left)

    def on_end(self, result: TurnResult) -> None:
        self.result = result


def test_both_tiers_look_at_the_same_text() -> None:
    """All sentences at once, in both layouts; what the recorded steps said, the plain form reads again."""
    sizes = read_config(VOICE_DIR).language_model
    head = sizes.text_position_head
    assert head is not None and not graphs_need(sizes)
    weights = load_weights(VOICE_DIR, sizes, CPU, torch.float32)
    settings = EngineSettings(
        max_sessions=32, max_rows=64, kv_cache_tokens=32 * LONGEST, block_size=BLOCK_SIZES[Tier.GRAPHS], knows_texts=True
    )
    runner = make_step_runner(Tier.GRAPHS, sizes, weights, settings, DEVICE, torch.bfloat16, lambda done, total: None, head)
    engine, tokenizer = TorchEngine(runner, settings, threaded=False), TextTokenizer.from_model_dir(VOICE_DIR)
    space = TokenSpace.of(sizes)
    layouts: list[TokenLayout] = [layout for _ in SENTENCES for layout in (Interleaver(space, (), ()), UnistreamLayout(space, (), ()))]
    spoken = []
    for number, layout in enumerate(layouts):
        layout.push_text(tokenizer.encode(SENTENCES[number // 2]))
        layout.end_text()
        sequence = engine.open(str(number), make_sampling_spec(GenerationOptions(seed=number), sizes), LONGEST)
        spoken.append((layout, sequence, list[tuple[int, int]]()))
    while not all(layout.finish_reason is not None for layout in layouts):
        running = []
        for layout, sequence, told in spoken:
            turn = layout.next_turn()
            if turn is not None:
                sink = Sink()
                sequence.turn(turn.append_ids, turn.limits, sink)
                running.append((layout, told, sink))
        while any(sink.result is None for _, _, sink in running):
            assert engine.step()
        for layout, told, sink in running:
            assert sink.result is not None
            texts = sum(one < space.text_vocab_size for one in layout.ledger)
            told += [(len(layout.ledger) + place, texts - 1 - left) for place, left in enumerate(sink.left)]
            layout.turn_ended(sink.ids, sink.result)
    engine.close()
    model = Qwen2Model(sizes, weights)
    equal, count = 0, 0
    for layout, _, told in spoken:
        ids = list(layout.ledger)
        looked = text_weights(model, ids)[head].argmax(-1).tolist()
        speech = [place for place, one in enumerate(ids) if space.is_speech(one)]
        expected = dict(zip(speech, looked, strict=True))
        equal += sum(expected[place] == number for place, number in told if place < len(ids))
        count += len(speech)
    assert count > 1000 and equal >= LEAST_EQUAL * count, f"{equal} of {count}"
