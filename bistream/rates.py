"""Rates that the wire contract and the CosyVoice2 architecture fix, derived once and used everywhere.

Clients and models rely on them (24 kHz audio, 25 speech tokens and 50 mel frames per second); they are not settings, and a checkpoint
with other rates is refused (``token2wav/renderer.py``). Sizes of networks come from the checkpoint.
"""

SAMPLE_RATE = 24_000  # Hz of every waveform that leaves the vocoder
REFERENCE_SAMPLE_RATE = 16_000  # Hz of the reference recordings on the wire (speech tokenizer and speaker encoder)
SPEECH_TOKENS_PER_SECOND = 25
MEL_FRAMES_PER_TOKEN = 2
SAMPLES_PER_MEL_FRAME = 480

MEL_FRAMES_PER_SECOND = SPEECH_TOKENS_PER_SECOND * MEL_FRAMES_PER_TOKEN  # 50
SAMPLES_PER_TOKEN = MEL_FRAMES_PER_TOKEN * SAMPLES_PER_MEL_FRAME  # 960

LOOKAHEAD_TOKENS = 3  # tokens to the right that the flow encoder reads before it can emit a frame
CHUNK_TOKENS = 25  # attention chunk of the flow encoder; caches are committed at absolute multiples of it
VOCODER_OVERLAP_FRAMES = 8  # mel frames that a vocoder call shares with the previous one
VOCODER_OVERLAP_SAMPLES = VOCODER_OVERLAP_FRAMES * SAMPLES_PER_MEL_FRAME  # 3840

TEXT_BLOCK_TOKENS = 5  # text tokens of one interleaved block
SPEECH_BLOCK_TOKENS = 15  # speech tokens of one interleaved block
MIN_SPEECH_TOKENS_PER_TEXT_TOKEN = 2  # upstream's min_token_text_ratio
MAX_SPEECH_TOKENS_PER_TEXT_TOKEN = 20  # upstream's max_token_text_ratio

SILENCE_S = 0.1  # spoken for a text without anything to speak: agents take an utterance without audio for a failure

assert MEL_FRAMES_PER_SECOND * SAMPLES_PER_MEL_FRAME == SAMPLE_RATE
assert SPEECH_TOKENS_PER_SECOND * SAMPLES_PER_TOKEN == SAMPLE_RATE
