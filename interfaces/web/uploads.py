"""Recordings that clients upload as voices: forms of several vendors, decoded a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from bistream.errors import BistreamError, InvalidInputError
from interfaces.audio.recordings import decode_recording
from interfaces.core.caller import Caller
from interfaces.core.errors import TooLargeError
from interfaces.core.service import SpeechService
from interfaces.core.shares import Places
from interfaces.core.voice import Voice
from interfaces.settings import InterfaceLimits
from interfaces.web.requests import FieldError

MAX_DECODING = 2  # recordings in memory and decoded at once
MAX_UPLOADS = 16  # under way; those that are decoded among them
MAX_FILES = 25  # as many as ElevenLabs takes


class Uploads:
    def __init__(self, service: SpeechService) -> None:
        self._service = service
        self._decoding = asyncio.Semaphore(MAX_DECODING)
        self._places = Places("uploads under way", MAX_UPLOADS, service.limits.share)

    async def take(self, request: Request, fields: Sequence[str], is_said_needed: bool) -> Voice:
        """The voice of the form's ``name``, of the first file under one of these fields, and of ``transcript`` or ``ref_text``.

        is_said_needed: whether a transcript must be there. Raises ``BistreamError``.
        """
        self._service.check_serving()
        limits, caller = self._service.limits, request.state.caller
        assert isinstance(caller, Caller)
        try:
            return await self._taken(request, fields, is_said_needed, limits, caller)
        except BistreamError as error:
            self._service.tell(error, caller)
            raise

    async def _taken(self, request: Request, fields: Sequence[str], is_said_needed: bool, limits: InterfaceLimits, caller: Caller) -> Voice:
        self._service.starts.take(caller.holders)
        await asyncio.to_thread(self._service.voices.check_room, caller)  # before the body is read
        with self._places.taken_by(caller.holders):
            async with _form(request, fields, is_said_needed) as (name, transcript, file), self._decoding:
                data = await file.read(limits.max_upload_bytes + 1)
                if len(data) > limits.max_upload_bytes:
                    raise TooLargeError(
                        f"The recording is larger than {limits.max_upload_bytes} bytes; upload a shorter or compressed one."
                    )
                samples = await asyncio.to_thread(decode_recording, data, limits.min_recording_s, limits.max_recording_s)
            return await asyncio.to_thread(self._service.voices.add, name, samples, transcript, caller)


@contextlib.asynccontextmanager
async def _form(request: Request, fields: Sequence[str], is_said_needed: bool) -> AsyncIterator[tuple[str, str | None, UploadFile]]:
    """Name, transcript and file, which lies on disk unless it is small."""
    try:
        form = await request.form(max_files=MAX_FILES, max_fields=16, max_part_size=16 * 1024)
    except MultiPartException:
        raise InvalidInputError(f"The body is not a multipart form; send name, transcript and {fields[0]}.") from None
    try:
        file = next((form[field] for field in fields if field in form), None)
        name, transcript = form.get("name"), form.get("transcript") or form.get("ref_text") or None
        if not isinstance(file, UploadFile):
            raise FieldError(f"{fields[0]} must be a file with the recording; add it to the form.", param=fields[0])
        if not isinstance(name, str) or not name.strip():
            raise FieldError("name must be the name of the voice; add it to the form.", param="name")
        if (transcript is not None or is_said_needed) and (not isinstance(transcript, str) or not transcript.strip()):
            raise FieldError("transcript must be what is said in the recording; add it to the form.", param="transcript")
        yield name, transcript, file
    finally:
        await form.close()
