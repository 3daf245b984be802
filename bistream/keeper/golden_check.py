"""Before a server counts as ready it speaks the golden utterance, and what it says is compared with what was stored.

Through the models' own processes, as they will serve: the recording through ``audio_tokenizer`` and ``speaker_embedding``, a text through
``llm_bistream``, its tokens through ``token2wav`` in hops, and the same text once more through the front model as a caller would send it.
Damaged weights, a broken kernel or a GPU that computes wrong answer every request, and all probes, without any error. Called by
``server_start`` after the probes.
"""

from __future__ import annotations

import datetime
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.audio.reference_tone import recording
from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.contract.codec import Arrays
from bistream.contract.fields import AUDIO_TOKENIZER, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV
from bistream.errors import BistreamError
from bistream.hops.policy import HopPolicy
from bistream.keeper.golden import DISTANCE_OTHER, SEED, TEXT, TRANSCRIPT, Golden, audio_fault, difference, distance, hops
from bistream.keeper.golden_store import (
    HOP_SETTINGS,
    GoldenStore,
    Parameters,
    StoredGolden,
    check_archives,
    checkpoint,
    environment,
    hardware,
    tiers_of,
)
from bistream.keeper.host import GoldenError
from bistream.keeper.metrics import models_text
from bistream.keeper.model_requests import ModelStream, RequestError, Values
from bistream.keeper.repository import read_parameters
from bistream.keeper.server_process import TritonServer
from bistream.processes.start_phases import phase
from bistream.types import FloatArray, IntArray, VoicePrompt
from bistream.voice.build import join_voice_prompt
from bistream.voice.conditioning import condition_reference

logger = logging.getLogger(__name__)

SUMS_VARY = "graphs"  # a tier whose flow adds with atomics, and whose compiler chooses among kernels by timing them
ATTEMPTS = 2  # a session of the probes may still run beside the first, and in some tiers batching with another session changes the last bit
NEEDED = (AUDIO_TOKENIZER, SPEAKER_EMBEDDING, LLM_BISTREAM, TOKEN2WAV, COSYVOICE2_BISTREAM)


@dataclass(frozen=True)
class GoldenCheck:
    """state_dir: holds what was stored; made when it is missing."""

    state_dir: Path
    timeout_s: float = 60.0  # for each response of a model
    hardware: Future[str] = field(default_factory=lambda: ThreadPoolExecutor(1).submit(hardware))  # takes a second, beside the start

    def __call__(self, server: TritonServer, should_stop: Callable[[], bool]) -> None:
        """Returns when the server speaks as stored, or as nothing else did yet. Raises ``GoldenError`` and ``Interrupted``."""
        parameters = read_parameters(server.settings.model_repository)
        if missing := [contract.name for contract in NEEDED if contract.name not in parameters]:
            logger.info("no golden utterance: the repository has no %s", ", ".join(missing))
            return
        began = time.monotonic()
        try:
            store = GoldenStore(self.state_dir, checkpoint(parameters))
            tiers = tiers_of(models_text(server.control_directory))
            present = environment(parameters, tiers, self.hardware.result())
            stored = store.find(present)
            is_known = stored is not None and stored.environment == present
            if stored is None:
                with phase("golden utterance: checksums of the weights"):
                    check_archives(parameters)
            form = _Form.of(parameters)
            with ModelStream(server.grpc_url, self.timeout_s, should_stop) as stream:
                if stored is not None:
                    _speak_as(stored, stream, form, is_known and SUMS_VARY not in tiers)
                golden, fault = (None, None) if is_known else speak(stream, None, form)
            if fault is not None:
                raise GoldenError(f"The golden utterance is no speech: {fault}; check the model directory, or try --set kernels=plain.")
        except RequestError as error:
            raise GoldenError(f"The golden utterance was not spoken: {error}") from None
        except BistreamError as error:
            raise GoldenError(f"The golden utterance was not spoken: {error.sentence}") from None
        if golden is None:
            found = "is as stored"
        elif stored is None:
            found = "of a checkpoint that is new here is stored for later starts"
        else:
            names = ", ".join(difference.partition(",")[0] for difference in present.differences(stored.environment))
            found = f"is like that of {stored.path.name}, which differs in {names}"
        logger.info("the golden utterance %s (%.1f s)", found, time.monotonic() - began)
        try:
            if golden is not None:
                store.save(golden, present)
        except OSError as error:
            logger.warning("the golden utterance cannot be stored in %s (%s); choose another --state-dir", store.folder, error.strerror)


@dataclass(frozen=True)
class _Form:
    """Settings of a repository that the utterance follows. tells_speaker: as of ``Family``. front_model: of recordings."""

    tells_speaker: bool
    samples_per_token: int
    hop_policy: HopPolicy
    front_model: RuntimeConfig

    @classmethod
    def of(cls, parameters: Parameters) -> _Form:
        """Raises ``CheckpointError``."""
        values, family = parameters[COSYVOICE2_BISTREAM.name], family_of(parameters[TOKEN2WAV.name].get("model_dir", ""))
        followed = (*HOP_SETTINGS, "condition_recordings", "min_reference_s", "max_reference_s")
        front_model = RuntimeConfig.from_strings({name: values[name] for name in followed if name in values})
        return cls(family.tells_speaker, family.audio_format.samples_per_token, HopPolicy.of(family, front_model), front_model)


def _speak_as(stored: StoredGolden, stream: ModelStream, form: _Form, exact: bool) -> None:
    """Raises ``GoldenError`` when it was different every time."""
    for attempt in range(ATTEMPTS):
        golden, fault = speak(stream, stored.golden, form)
        if fault is None and (fault := difference(stored.golden, golden, exact)) is None:
            return
        if attempt + 1 < ATTEMPTS:
            logger.warning("the golden utterance is not as it should be (%s); it is spoken once more", fault)
    date = datetime.datetime.fromtimestamp(stored.path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    raise GoldenError(
        f"The golden utterance is not as stored on {date}: {fault}; restore the files of the checkpoint, which are damaged unless the "
        f"GPU or its kernels are (--set kernels=plain does without), or remove {stored.path.parent} if this is how it shall sound."
    )


def speak(stream: ModelStream, base: Golden | None, form: _Form) -> tuple[Golden, str | None]:
    """The utterance, and why it cannot be right. base: its outputs are the inputs of the next stages, else those of this run.
    form: of the repository."""
    wav = condition_reference(recording(), form.front_model)
    with phase("golden utterance: voice"):
        voice_tokens: IntArray = _one(stream.ask(AUDIO_TOKENIZER, {"reference_wav": wav.reshape(1, -1)}), "prompt_speech_tokens")
        (speaker,) = stream.ask(SPEAKER_EMBEDDING, {"reference_wav": wav.reshape(1, -1)})
        embedding: FloatArray = speaker["prompt_spk_embedding"]
    known = (voice_tokens, embedding) if base is None else (base.voice_tokens, base.embedding)
    voice = join_voice_prompt(TRANSCRIPT, speaker["prompt_speech_feat"], *known)
    with phase("golden utterance: speech tokens"):
        speech_tokens = _speech_tokens(stream, voice, form.tells_speaker)
    with phase("golden utterance: audio"):
        waveform = _waveform(stream, voice, speech_tokens if base is None else base.speech_tokens, form.hop_policy)
    golden = Golden(voice_tokens, embedding, speech_tokens, waveform)
    fault = audio_fault(waveform)
    if fault is not None:
        return golden, f"the audio of token2wav {fault}"
    with phase("golden utterance: as a caller hears it"):
        return golden, _front_model_fault(stream, golden if base is None else None, len(speech_tokens) * form.samples_per_token)


def _front_model_fault(stream: ModelStream, alike: Golden | None, samples: int) -> str | None:
    """What is wrong with the same utterance as a caller hears it. alike: made of the same tokens. samples: that they have."""
    wav = recording()
    voice: Values = {"reference_wav": wav.reshape(1, -1), "reference_wav_len": len(wav), "reference_text": TRANSCRIPT}
    responses = stream.ask(COSYVOICE2_BISTREAM, {"session_id": _session_id(), "target_text": TEXT, "is_end": True, "seed": SEED, **voice})
    heard = np.concatenate([np.zeros(0, np.float32), *(response["waveform"].reshape(-1) for response in responses)])
    if (fault := audio_fault(heard)) is not None:
        return f"the audio of {COSYVOICE2_BISTREAM.name} {fault}"
    if len(heard) != samples:
        return f"{COSYVOICE2_BISTREAM.name} speaks {len(heard)} samples instead of {samples}"
    if alike is not None and (apart := distance(alike.waveform, heard)) > DISTANCE_OTHER:
        return f"{COSYVOICE2_BISTREAM.name} makes other audio than token2wav (log-mel distance {apart:.3f}, at most {DISTANCE_OTHER:g})"
    return None


def _speech_tokens(stream: ModelStream, voice: VoicePrompt, tells_speaker: bool) -> IntArray:
    prompt: Values = {
        "prompt_text": voice.prompt_text,
        "prompt_speech_tokens": voice.speech_tokens,
        **({"speaker_tokens": voice.speaker_tokens} if tells_speaker else {}),
    }
    responses = stream.ask(LLM_BISTREAM, {"session_id": _session_id(), "text": TEXT, "is_end": True, "seed": SEED, **prompt})
    tokens: IntArray = np.concatenate([np.zeros(0, np.int32), *(response["speech_token_ids"].reshape(-1) for response in responses)])
    if not len(tokens):
        raise RequestError(f"model {LLM_BISTREAM.name} speaks no speech token")
    return tokens


def _waveform(stream: ModelStream, voice: VoicePrompt, tokens: IntArray, policy: HopPolicy) -> FloatArray:
    session_id, pieces = _session_id(), hops(tokens, len(voice.speech_tokens), policy)
    prompt: Values = {
        "prompt_spk_embedding": voice.speaker_embedding,
        "prompt_speech_tokens": voice.speech_tokens,
        **({"prompt_speech_feat": voice.speech_feat} if voice.speech_feat.size else {}),
        "seed": SEED,
    }
    chunks = []
    for number, piece in enumerate(pieces, 1):
        hop: Values = {"session_id": session_id, "target_speech_tokens": piece.astype(np.int32), "finalize": number == len(pieces)}
        chunks.append(_one(stream.ask(TOKEN2WAV, {**hop, **(prompt if number == 1 else {})}), "waveform").reshape(-1))
    return np.concatenate(chunks)


def _one(responses: list[Arrays], name: str) -> NDArray[Any]:
    if len(responses) != 1:
        raise RequestError(f"{len(responses)} responses instead of one with {name}")
    return responses[0][name]


def _session_id() -> str:
    return f"golden-{uuid.uuid4().hex}"
