"""Training of the language model: the served body (``Qwen2Model``) over padded rows, cross-entropy of speech, fill and eos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bistream.checkpoint_config import LanguageModelConfig
from bistream.text2token.engine import TokenSpace
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import BODY, build_weights, expected_shapes
from training.alignment import GUIDED_HEAD, GUIDED_LAYERS, guidance_loss
from training.bpe import TextIds
from training.language_model_data import LanguageModelBatches, Utterances
from training.layouts import IGNORED
from training.loop import adamw, update
from training.sizes import Sizes

TIED = "llm.model.lm_head.weight"
EMBEDDING = f"{BODY}.embed_tokens.weight"
_VALIDATE_EVERY = 500
_GUIDANCE_WEIGHT = 0.3


class LanguageModelNetwork(nn.Module):
    """Parameters under the keys of ``llm.pt`` ("." written "/", as PyTorch wants it)."""

    def __init__(self, config: LanguageModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, self.dropout = config, dropout
        self.tensors = nn.ParameterDict(
            {_safe(key): nn.Parameter(_initial(key, shape)) for key, shape in expected_shapes(config).items() if key != TIED}
        )

    def state(self) -> dict[str, Tensor]:
        """The parameters under the file's keys; the text head is tied to the embedding."""
        state = {key.replace("/", "."): value for key, value in self.tensors.items()}
        return {**state, TIED: state[EMBEDDING]}

    def model(self) -> Qwen2Model:
        """The served model over these parameters; gradients flow through."""
        device = next(self.parameters()).device
        return Qwen2Model(self.config, build_weights(self.state(), self.config, device, torch.float32))

    def forward(self, ids: Tensor, aligned: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """ids int64 [B, L] -> scores float32 [B, L, speech_token_size + 3]; the guided heads' loss, 0 without ``aligned`` [B, L]."""
        model, dropout = self.model(), self.dropout if self.training else 0.0
        rows, length = ids.shape
        guidance = list[Tensor]()

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            parts = [item.view(rows, length, *item.shape[1:]).transpose(1, 2).to(value.dtype) for item in (query, key, value)]
            if aligned is not None and layer in GUIDED_LAYERS:
                guidance.append(guidance_loss(parts[0][:, GUIDED_HEAD], parts[1][:, GUIDED_HEAD], aligned))
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], dropout_p=dropout, is_causal=True, enable_gqa=True)
            return F.dropout(mixed.transpose(1, 2).reshape(rows * length, -1), dropout, self.training)

        positions = torch.arange(length, device=ids.device).repeat(rows)
        embedded = F.dropout(model.embed(ids.flatten()), dropout, self.training)
        hidden = model.forward_embedded(embedded, positions, attend)
        return model.logits(hidden).view(rows, length, -1), torch.stack(guidance).mean() if guidance else hidden.new_zeros(())


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
        self.total_steps, self.warmup_steps = plan.language_model_steps, min(300, plan.language_model_steps // 10)
        space, size = TokenSpace.of(config), plan.language_model_positions
        self._batches = _loaded(LanguageModelBatches(utterances, texts, space, size, seed), plan.loader_processes)
        self._others = _loaded(LanguageModelBatches(utterances, texts, space, size, seed + 1, is_validation=True), 0)
        self._device = device
        self.modules: Mapping[str, nn.Module] = {"network": self.network}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {
            "adam": adamw(self.network.parameters(), plan.language_model_rate, (0.9, 0.95), 0.05)
        }

    def step(self, number: int) -> dict[str, Tensor]:
        loss, right, guidance = self._loss(next(self._batches))
        update(loss + _GUIDANCE_WEIGHT * guidance, self.optimizers["adam"])
        found = {"speech": loss.detach(), "right": right, "guidance": guidance.detach()}
        if number % _VALIDATE_EVERY == _VALIDATE_EVERY - 1:
            self.network.eval()
            with torch.no_grad():
                print(f"language_model: step {number + 1}, held back {float(self._loss(next(self._others))[0]):.4f}", flush=True)
            self.network.train()
        return found

    def _loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        ids, targets, aligned = (item.to(self._device, non_blocking=True) for item in batch)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            scores, guidance = self.network(ids, aligned)
        known = targets != IGNORED
        loss = F.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        return loss, ((scores.argmax(-1) == targets) & known).sum() / known.sum(), guidance


def _loaded(batches: LanguageModelBatches, processes: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    if not processes:
        return iter(batches)
    return iter(DataLoader(batches, batch_size=None, num_workers=processes, pin_memory=torch.cuda.is_available(), prefetch_factor=8))
