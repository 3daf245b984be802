"""Hands the requests of ``cosyvoice2`` over to ``cosyvoice2_bistream``: each is one call through a channel, whose answers are its audio.

A cancellation does not pass from one model to another, so the clients are watched here. A call whose client has gone is given up, which
ends its session there.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from bistream.contract.codec import Values
from bistream.contract.refusals import accepts_no_sessions, client_has_gone, shut_down
from bistream.errors import BistreamError, EngineError
from bistream.sessions.event_loop import EventLoop
from bistream.sessions.ports import AudioSender
from bistream.sessions.watcher import POLL_INTERVAL_S, ClientPoller
from bistream.transport.channel import CallChannel
from bistream.types import AudioChunk

logger = logging.getLogger(__name__)


@dataclass
class _Call:
    """error: why it is given up; told to the client."""

    task: asyncio.Task[None]
    error: BistreamError | None = None

    def give_up(self, error: BistreamError) -> None:
        self.error = error
        self.task.cancel()


class HandOver:
    """Thread-safe; methods whose names begin with an underscore belong to the event loop."""

    def __init__(self, channel: CallChannel, patience_s: float) -> None:
        """channel: to the other model; closed with this. patience_s: how long ``close`` waits for what is under way."""
        self._channel = channel
        self._patience_s = patience_s
        self._calls: dict[AudioSender, _Call] = {}
        self._some = asyncio.Event()  # a call is open
        self._poller = ClientPoller()
        self._loop = EventLoop("bistream-handover")
        self._loop.call(lambda: self._loop.start_task(self._watch()))

    def handle(self, values: Values, sender: AudioSender) -> None:
        """Returns at once and never raises. ``sender`` is finished exactly once, after the audio."""
        if not self._loop.call(self._begin, values, sender):
            sender.finish(accepts_no_sessions())

    def close(self) -> None:
        """The other model ends its sessions by itself; what it does not end is given up. Idempotent."""
        self._loop.run(self._end())
        self._loop.close()
        self._poller.close()
        self._channel.close()

    def _begin(self, values: Values, sender: AudioSender) -> None:
        self._calls[sender] = _Call(self._loop.start_task(self._pass_on(values, sender)))
        self._some.set()

    async def _pass_on(self, values: Values, sender: AudioSender) -> None:
        async def send(answer: Values) -> None:
            await sender.send(AudioChunk(answer["waveform"], answer["sequence_number"], 0))

        error: BistreamError | None = None
        try:
            await self._channel.stream(values, send)
        except asyncio.CancelledError:
            error = self._calls[sender].error or shut_down()
        except BistreamError as told:
            error = told
        except Exception:
            logger.exception("a request could not be handed over")
            error = EngineError("The server failed while passing this request on; try again.")
        del self._calls[sender]
        sender.finish(error)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            if not self._calls:
                self._some.clear()
                await self._some.wait()
            for sender in await self._poller.gone(list(self._calls)):
                if (call := self._calls.get(sender)) is not None:
                    call.give_up(client_has_gone())

    async def _end(self) -> None:
        if self._calls:
            await asyncio.wait([call.task for call in self._calls.values()], timeout=self._patience_s)
        left = list(self._calls.values())
        for call in left:
            call.give_up(shut_down())
        if left:
            await asyncio.wait([call.task for call in left])
