"""Chooses the speech renderer: the only module that knows which ones exist. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import replace

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.processes.start_phases import phase
from bistream.token2wav.renderer import SpeechRenderer, sizes_of


def load_renderer(config: RuntimeConfig, session_s: float | None = None) -> SpeechRenderer:
    """The renderer of ``config.model_dir``, loaded. Raises ``ConfigError``, or ``CheckpointError`` naming the missing or wrong entry.

    session_s: audio per session that the automatic budget of its state has room for; None: as in a server.
    """
    checkpoint = read_config(config.model_dir)
    if checkpoint.family.flow is None:
        with phase("codec imported"):
            from bistream.token2wav.codec_renderer import CodecRenderer  # noqa: PLC0415  (loads torch)

        return CodecRenderer.load(config)
    if config.solver_steps:
        checkpoint = replace(checkpoint, flow=replace(checkpoint.flow, n_timesteps=config.solver_steps))
    sizes = sizes_of(checkpoint)
    with phase("flow and vocoder imported"):
        from bistream.token2wav.speech_stages import SpeechStages  # noqa: PLC0415  (loads torch)

    return SpeechStages.load(config, checkpoint, sizes, session_s)
