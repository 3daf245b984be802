"""Training of the language model: the served body (``Qwen2Model``) over padded rows, cross-entropy of speech, fill and eos.

Four helps against fluent speech that is not the text, none of which is served: guided heads (``layouts.py``); a head that tells the
phones of the next speech tokens, some of which nothing but the text can tell; rows in which a part of the speech tokens is drawn by
the model itself, as when it is served (scheduled sampling in parallel, Mihaylova and Martins 2019); and embeddings of text that know its
letters (``Spelling``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.engine import TokenSpace
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import BODY, build_weights, expected_shapes
from training.bpe import LONGEST, TextIds
from training.language_model_data import PHONES_AHEAD, Batch, LanguageModelBatches, Utterances
from training.layouts import GUIDED_HEADS, GUIDED_LAYERS, IGNORED, guidance_loss
from training.loop import adamw, update
from training.phones import PHONES
from training.sizes import Sizes

TIED = "llm.model.lm_head.weight"
EMBEDDING = f"{BODY}.embed_tokens.weight"
_VALIDATE_EVERY = 500
_GUIDANCE_WEIGHT = 0.3
_PHONES_WEIGHT = 0.3
_OWN_FROM = 0.2  # of the steps, when what the model draws makes sense
_OWN_MOST = 0.4  # of a row's speech tokens; the least is none
_OWN_TEMPERATURE = 0.7  # sharper than the scores, as nucleus sampling is

_LETTER_SIZE, _BYTES = 32, 256  # of ``Spelling``


def letters_of(pieces: Sequence[bytes]) -> Tensor:
    """The spelling of each text id -> uint8 [ids, LONGEST]: its first bytes, then zeros."""
    rows = [list(piece[:LONGEST]) + [0] * (LONGEST - len(piece)) for piece in pieces]
    return torch.tensor(rows, dtype=torch.uint8)


class Spelling(nn.Module):
    """Embeddings of text ids from their letters; rare ones learn from common ones. ``letters`` is kept: an export needs no vocabulary."""

    letters: Tensor

    def __init__(self, text_ids: int, hidden_size: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, _LETTER_SIZE)
        self.widen = nn.Linear(LONGEST * _LETTER_SIZE, hidden_size)
        self.project = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.normal_(self.project.weight, std=0.02 * hidden_size**-0.5)
        self.register_buffer("letters", torch.zeros(text_ids, LONGEST, dtype=torch.uint8))

    def forward(self) -> Tensor:
        """float32 [text ids, hidden]."""
        embedded = self.bytes(self.letters.int()).flatten(1)
        found: Tensor = self.project(F.silu(self.widen(embedded)))
        return found


class LanguageModelNetwork(nn.Module):
    """Parameters under the keys of ``llm.pt`` ("." written "/", as PyTorch wants it), and the spelling, a part of the embedding."""

    def __init__(self, config: LanguageModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, self.dropout = config, dropout
        self.tensors = nn.ParameterDict(
            {_safe(key): nn.Parameter(_initial(key, shape)) for key, shape in expected_shapes(config).items() if key != TIED}
        )
        self.spelling = Spelling(config.text_vocab_size, config.hidden_size)

    def state(self) -> dict[str, Tensor]:
        """The parameters under the file's keys; the text head is tied to the embedding."""
        state = {key.replace("/", "."): value for key, value in self.tensors.items()}
        state[EMBEDDING] = state[EMBEDDING] + self.spelling()
        return {**state, TIED: state[EMBEDDING]}

    def model(self) -> Qwen2Model:
        """The served model over these parameters; gradients flow through."""
        device = next(self.parameters()).device
        return Qwen2Model(self.config, build_weights(self.state(), self.config, device, torch.float32))

    def forward(self, ids: Tensor, aligned: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """ids int64 [B, L] -> scores float32 [B, L, speech_token_size + 3]; the guided heads' loss, 0 without ``aligned`` [2, B, L];
        what the scores are made of, [B, L, hidden]."""
        model, dropout = self.model(), self.dropout if self.training else 0.0
        rows, length = ids.shape
        guidance = list[Tensor]()

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            parts = [item.view(rows, length, *item.shape[1:]).transpose(1, 2).to(value.dtype) for item in (query, key, value)]
            if aligned is not None and layer in GUIDED_LAYERS:
                for head, places in zip(GUIDED_HEADS, aligned, strict=True):
                    guidance.append(guidance_loss(parts[0][:, head], parts[1][:, head], places))
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], dropout_p=dropout, is_causal=True, enable_gqa=True)
            return F.dropout(mixed.transpose(1, 2).reshape(rows * length, -1), dropout, self.training)

        positions = torch.arange(length, device=ids.device).repeat(rows)
        embedded = F.dropout(model.embed(ids.flatten()), dropout, self.training)
        hidden = model.forward_embedded(embedded, positions, attend)
        guided = torch.stack(guidance).mean() if guidance else hidden.new_zeros(())
        return model.logits(hidden).view(rows, length, -1), guided, hidden.view(rows, length, -1)


def _safe(key: str) -> str:
    return key.replace(".", "/")


def _initial(key: str, shape: tuple[int, ...]) -> Tensor:
    if key.endswith("norm.weight"):
        return torch.ones(shape)
    return torch.zeros(shape) if key.endswith("bias") else torch.randn(shape) * (0.02 if "embed" in key else shape[-1] ** -0.5)


class LanguageModelTask:
    name = "language_model"

    def __init__(self, utterances: Utterances, texts: TextIds, sizes: Sizes, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        config, plan = sizes.checkpoint.language_model, sizes.plan
        self.network = LanguageModelNetwork(config, plan.language_model_dropout).to(device)
        self.network.spelling.letters.copy_(letters_of(texts.pieces))
        self.phones = nn.Linear(config.hidden_size, len(PHONES_AHEAD) * len(PHONES)).to(device)
        self.total_steps, self.warmup_steps = plan.language_model_steps, min(300, plan.language_model_steps // 10)
        space, size = TokenSpace.of(config), plan.language_model_positions
        self._batches = _loaded(LanguageModelBatches(utterances, texts, space, size, seed), plan.loader_processes)
        self._others = _loaded(LanguageModelBatches(utterances, texts, space, size, seed + 1, is_validation=True), 0)
        self._space, self._device = space, device
        self.modules: Mapping[str, nn.Module] = {"network": self.network, "phones": self.phones}
        parameters = [*self.network.parameters(), *self.phones.parameters()]
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"adam": adamw(parameters, plan.language_model_rate, (0.9, 0.95), 0.05)}

    def step(self, number: int) -> dict[str, Tensor]:
        found = self._losses(next(self._batches), has_own=number > _OWN_FROM * self.total_steps)
        update(found["speech"] + _GUIDANCE_WEIGHT * found["guidance"] + _PHONES_WEIGHT * found["phones"], self.optimizers["adam"])
        if number % _VALIDATE_EVERY == _VALIDATE_EVERY - 1:
            self.network.eval()
            with torch.no_grad():
                print(f"language_model: step {number + 1}, held back {float(self._losses(next(self._others))['speech']):.4f}", flush=True)
            self.network.train()
        return {name: value.detach() for name, value in found.items()}

    def _losses(self, batch: Batch, has_own: bool = False) -> dict[str, Tensor]:
        ids, targets, aligned, phones = (item.to(self._device, non_blocking=True) for item in batch)
        if has_own:  # not within autocast, which would keep the weights it cast without gradients
            ids = self._with_own(ids, targets)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            scores, guidance, hidden = self.network(ids, aligned)
            told = self.phones(hidden)
        known = targets != IGNORED
        told = told.float().unflatten(2, (len(PHONES_AHEAD), -1)).permute(2, 0, 1, 3)
        return {
            "speech": F.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED),
            "right": ((scores.argmax(-1) == targets) & known).sum() / known.sum(),
            "guidance": guidance,
            "phones": F.cross_entropy(told.flatten(0, 2), phones.flatten(), ignore_index=IGNORED),
        }

    @torch.no_grad()
    def _with_own(self, ids: Tensor, targets: Tensor) -> Tensor:
        """ids [B, L], with a part of the speech tokens drawn by the model from what came before them."""
        codes = self._space.speech_token_size
        self.network.eval()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            scores = self.network(ids)[0][:, :-1, :codes].float()
        self.network.train()
        drawn = (scores / _OWN_TEMPERATURE - torch.empty_like(scores).exponential_().log()).argmax(-1)
        share = _OWN_MOST * torch.rand(len(ids), 1, device=ids.device)
        before = targets[:, :-1]  # a code that is predicted stands at the next place
        chosen = (before >= 0) & (before < codes) & (torch.rand(before.shape, device=ids.device) < share)
        return torch.cat([ids[:, :1], torch.where(chosen, drawn + self._space.speech_offset, ids[:, 1:])], dim=1)


def _loaded(batches: LanguageModelBatches, processes: int) -> Iterator[Batch]:
    if not processes:
        return iter(batches)
    return iter(DataLoader(batches, batch_size=None, num_workers=processes, pin_memory=torch.cuda.is_available(), prefetch_factor=8))
