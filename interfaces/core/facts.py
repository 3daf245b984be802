"""What a server says of itself: what its checkpoint can do, and the voices that it has by name (docs/wire_protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritonclient.grpc import service_pb2

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.segments import MAX_CHARS
from bistream.client.translation import infer_request
from bistream.contract.audio import UPSTREAM_TOKENS_PER_SECOND, is_marked, sample_rate_of
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.voices import ListedVoice, parse_voices

LIST_INPUT = "is_voice_list"


@dataclass(frozen=True)
class ServerFacts:
    """Defaults: of a server that says nothing. languages: as in ``ModelCard``. lists_voices: it tells ``voices``, the default first.
    max_text_chars: of a session. sample_rate: None: not known yet. is_marked: its audio may have the watermark."""

    languages: frozenset[str] = frozenset()
    can_be_instructed: bool = True
    lists_voices: bool = False
    max_text_chars: int = MAX_CHARS
    sample_rate: int | None = None
    tokens_per_second: int = UPSTREAM_TOKENS_PER_SECOND
    voices: tuple[ListedVoice, ...] = ()
    is_marked: bool = False

    def lacks(self, speaker_id: str | None) -> bool:
        return speaker_id is not None and self.lists_voices and all(voice.name != speaker_id for voice in self.voices)


async def ask_facts(client: AsyncBistreamClient, timeout_s: float) -> ServerFacts:
    """Raises as ``AsyncBistreamClient.ask`` does, and ``ValueError``."""
    question = service_pb2.ModelConfigRequest(name=COSYVOICE2_BISTREAM.name)
    config = (await client.ask("ModelConfig", question, service_pb2.ModelConfigResponse, timeout_s)).config
    told = {name: parameter.string_value for name, parameter in config.parameters.items()}
    languages = frozenset(code for code in told.get("languages", "").split(",") if code)
    lists_voices = any(tensor.name == LIST_INPUT for tensor in config.input)  # earlier servers have no such input
    max_chars = max(1, int(told.get("max_text_chars", MAX_CHARS)))
    tokens_per_second = int(told.get("tokens_per_second", UPSTREAM_TOKENS_PER_SECOND))
    can_be_instructed = told.get("can_be_instructed", "true") == "true"
    facts = ServerFacts(languages, can_be_instructed, lists_voices, max_chars, sample_rate_of(told), tokens_per_second)
    return await with_voices(replace(facts, is_marked=is_marked(told)), client, timeout_s)


async def with_voices(facts: ServerFacts, client: AsyncBistreamClient, timeout_s: float) -> ServerFacts:
    """With the voices of this moment. Raises as ``ask_facts`` does."""
    if not facts.lists_voices:
        return facts
    question = infer_request(COSYVOICE2_BISTREAM.name, "voices", {LIST_INPUT: True}, {})
    answer = await client.ask("ModelStreamInfer", question, service_pb2.ModelStreamInferResponse, timeout_s)
    contents = answer.infer_response.raw_output_contents
    if answer.error_message or len(contents) != 1:
        raise ValueError(answer.error_message or "the answer has no list of voices")
    return replace(facts, voices=parse_voices(contents[0][4:]))  # behind the length of the only element
