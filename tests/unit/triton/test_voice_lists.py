"""A front model answers a request for its voices with one response, whatever reading them brings."""

from __future__ import annotations

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.voices import PRESET, ListedVoice, parse_voices
from bistream.errors import CheckpointError
from bistream.transport.sender import ResponseSender
from bistream.triton.voice_lists import VoiceLists
from tests.unit.triton.fakes import FakePbUtils, FakeSender

NORA = ListedVoice("nora", PRESET, is_default=True)


def answered(listed: object) -> FakeSender:
    fake = FakeSender()

    def read() -> list[ListedVoice]:
        if isinstance(listed, Exception):
            raise listed
        assert isinstance(listed, list)
        return listed

    lists = VoiceLists(read)
    lists.answer(ResponseSender(FakePbUtils(), fake, COSYVOICE2_BISTREAM))
    lists.close()
    assert fake.violations == [] and fake.finals == 1
    return fake


def test_the_voices_come_in_one_final_response() -> None:
    ((response, is_final),) = answered([NORA]).sent
    assert response is not None and is_final
    (voices,) = response.arrays().values()
    assert voices.shape == (1, 1) and parse_voices(voices[0, 0]) == (NORA,)


def test_what_cannot_be_read_is_an_error_without_details() -> None:
    for error, words in (
        (CheckpointError("spk2info.pt is damaged; download it again."), "is damaged"),
        (OSError("/secret/path"), "failed"),
    ):
        (told,) = answered(error).errors
        assert words in str(told) and "/secret" not in str(told)
