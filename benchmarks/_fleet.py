"""Discrete-event simulation of callers, proxies and replicas. ``benchmarks/fleet.py`` is its command line.

A caller wants a reply, hears it, pauses, and wants the next one, for ever. Its proxy chooses a replica; the replica takes or refuses it.
All randomness comes from one seed: callers and choices have generators of their own, so every policy meets the same callers.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks._fleet_policies import AdmissionRule, ProxyView, choose
from benchmarks._fleet_replica import Batch, Replica, ServiceTimes, interpolate
from benchmarks._fleet_session import TOKEN_S, Session
from bistream.families.cosyvoice2 import AUDIO_FORMAT

HEARD_S = 0.02  # a shorter silence is not heard as a gap


@dataclass(frozen=True)
class Conversation:
    """What callers do. reply_s: mean audio of a reply; spread: 0 all equal, 1 exponential. pause_s: mean, after a reply was heard.

    speech_per_text_s: seconds of speech that a second of arriving text yields; 0: the whole text is there at once. hears: False wants
    the next reply as soon as the last chunk came (a closed-loop benchmark). retry_s: after BUSY, on average; 0: gives up that reply.
    begin_s: all callers come within so many seconds; None: within a reply and a pause. replies: of each caller; 0: for ever.
    """

    reply_s: float = 5.6
    spread: float = 0.5
    pause_s: float = 1.0
    speech_per_text_s: float = 4.0
    hears: bool = True
    retry_s: float = 1.0
    begin_s: float | None = None
    replies: int = 0

    @property
    def is_whole(self) -> bool:
        return self.speech_per_text_s == 0.0


@dataclass(frozen=True)
class Network:
    """detect_s: until the proxies know that a replica is not ready, or ready again. connect_s: lost on a replica that does not answer.

    notice_s: until a caller knows that its replica is gone. turn_away_s: to start again elsewhere after SHUTTING_DOWN.
    """

    proxies: int = 2
    detect_s: float = 1.0
    connect_s: float = 1.0
    notice_s: float = 2.0
    turn_away_s: float = 0.05


@dataclass(frozen=True)
class Setting:
    """slow_replicas: as many of them take ``slowness`` times as long for everything."""

    callers: int = 10_000
    replicas: int = 40
    policy: str = "least_request"
    admission: AdmissionRule = AdmissionRule()
    times: ServiceTimes = ServiceTimes()
    conversation: Conversation = Conversation()
    network: Network = Network()
    seed: int = 1
    slow_replicas: int = 0
    slowness: float = 2.0


@dataclass
class Counts:
    """Of the whole run; ``first_audio`` has (when it was wanted, seconds until it was heard, refusals included)."""

    wanted: int = 0
    admitted: int = 0
    refused: int = 0  # BUSY
    lost: int = 0
    completed: int = 0
    with_gap: int = 0
    first_audio: list[tuple[float, float]] = field(default_factory=list)
    audio_s: float = 0.0  # of completed sessions
    last_audio_at_s: float = 0.0
    most_open: int = 0  # sessions of one replica


@dataclass
class Fleet:
    setting: Setting
    now_s: float = 0.0
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        setting = self.setting
        speeds = [setting.slowness] * setting.slow_replicas + [1.0] * (setting.replicas - setting.slow_replicas)
        self.replicas = [Replica(number, speed, setting.admission) for number, speed in enumerate(speeds)]
        self.proxies = [
            ProxyView(list(range(setting.replicas)), [0] * setting.replicas, random.Random(f"{setting.seed} proxy {number}"))
            for number in range(setting.network.proxies)
        ]
        self.callers = [random.Random(f"{setting.seed} caller {number}") for number in range(setting.callers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._to_drain: list[int] = []
        self._drain_back_s = 0.0
        talk = setting.conversation
        self._replies = [0] * setting.callers  # wanted so far, by caller
        self._tokens = [0] * setting.callers  # of the last one
        begin_s = talk.reply_s + talk.pause_s if talk.begin_s is None else talk.begin_s
        for caller, chance in enumerate(self.callers):
            self.at(chance.uniform(0.0, begin_s), lambda caller=caller: self._want(caller))  # type: ignore[misc]

    def at(self, when_s: float, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, event))

    def run(self, until_s: float) -> Counts:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = until_s
        return self.counts

    # Callers

    def _want(self, caller: int) -> None:
        if self._replies[caller] == self.setting.conversation.replies > 0:
            return
        self._replies[caller] += 1
        self._tokens[caller] = self._reply_tokens(caller)
        self.counts.wanted += 1
        self._start(caller, self.now_s, None)

    def _start(self, caller: int, asked_at_s: float, avoid: int | None) -> None:
        setting = self.setting
        view = self.proxies[caller % len(self.proxies)]
        view.avoid = avoid
        number = choose(setting.policy, view)
        if number is None:
            self._again(caller, asked_at_s, setting.conversation.retry_s or 1.0)
            return
        replica = self.replicas[number]
        if not replica.is_up:
            self.at(self.now_s + setting.network.connect_s, lambda: self._start(caller, asked_at_s, number))
        elif not replica.accepts:
            self._again(caller, asked_at_s, setting.network.turn_away_s)
        else:
            session = Session(caller, number, asked_at_s, self.now_s, self._tokens[caller], setting.conversation.is_whole)
            if replica.admits(session, self.now_s):
                self._admit(session, replica, view)
            else:
                self.counts.refused += 1
                if retry_s := setting.conversation.retry_s:
                    self._again(caller, asked_at_s, retry_s)
                else:
                    self._pause(caller, self.now_s)

    def _again(self, caller: int, asked_at_s: float, mean_s: float) -> None:
        delay_s = mean_s * self.callers[caller].uniform(0.5, 1.5)
        self.at(self.now_s + delay_s, lambda: self._start(caller, asked_at_s, None))

    def _pause(self, caller: int, from_s: float) -> None:
        pause_s = self.setting.conversation.pause_s
        wait_s = self.callers[caller].expovariate(1 / pause_s) if pause_s else 0.0
        self.at(max(self.now_s, from_s) + wait_s, lambda: self._want(caller))

    def _reply_tokens(self, caller: int) -> int:
        """Between equal lengths and an exponential distribution, at least a second."""
        talk, chance = self.setting.conversation, self.callers[caller]
        seconds = talk.reply_s * (1 - talk.spread + talk.spread * chance.expovariate(1.0))
        return max(AUDIO_FORMAT.tokens_per_second, round(seconds * AUDIO_FORMAT.tokens_per_second))

    # A session

    def _admit(self, session: Session, replica: Replica, view: ProxyView) -> None:
        self.counts.admitted += 1
        view.open[replica.number] += 1
        replica.begin(session, self.now_s, self.setting.times)
        self.counts.most_open = max(self.counts.most_open, len(replica.live))
        self._next_hop(session)

    def _next_hop(self, session: Session) -> None:
        tokens = session.next_tokens()
        replica = self.replicas[session.replica]
        ready_at_s = replica.ready_at_s(session, tokens, self.setting.times, self.setting.conversation.speech_per_text_s)
        if ready_at_s <= self.now_s:
            replica.push(session, tokens, self.now_s)
        else:
            life = replica.life
            self.at(ready_at_s, lambda: self._push(replica, life, session, tokens))

    def _push(self, replica: Replica, life: int, session: Session, tokens: int) -> None:
        if replica.life == life:
            replica.push(session, tokens, self.now_s)
            self._compute(replica)

    def _compute(self, replica: Replica) -> None:
        work = None if replica.is_computing else replica.work(self.now_s, self.setting.times)
        if work is not None:
            life, (seconds, done) = replica.life, work
            replica.is_computing = True
            self.at(self.now_s + seconds, lambda: self._computed(replica, life, done))

    def _computed(self, replica: Replica, life: int, done: Batch | None) -> None:
        """done: None after a step of a batch that goes on."""
        if replica.life != life:
            return
        replica.is_computing = False
        if done is not None:
            replica.done(done, self.now_s)
            transit_s = interpolate(self.setting.times.transit_s, len(replica.live))
            self.at(self.now_s + transit_s, lambda: self._deliver(replica, life, done))
        self._compute(replica)

    def _deliver(self, replica: Replica, life: int, batch: Batch) -> None:
        if replica.life != life:
            return
        for hop in batch.hops:
            self._hear(replica, hop.item, hop.tokens)
        self._compute(replica)
        self._drained(replica)

    def _hear(self, replica: Replica, session: Session, tokens: int) -> None:
        if session.sent == 0:
            self.counts.first_audio.append((session.asked_at_s, self.now_s - session.asked_at_s))
        session.receive(tokens, self.now_s)
        if session.sent < session.total:
            self._next_hop(session)
            return
        replica.live.remove(session)
        self._release(session)
        self.counts.completed += 1
        self.counts.audio_s += session.total * TOKEN_S
        self.counts.last_audio_at_s = self.now_s
        self.counts.with_gap += session.silent_s > HEARD_S
        self._pause(session.caller, session.audio_ends_at_s if self.setting.conversation.hears else self.now_s)

    def _release(self, session: Session) -> None:
        self.proxies[session.caller % len(self.proxies)].open[session.replica] -= 1

    # Incidents

    def die(self, number: int, back_after_s: float) -> None:
        """Its sessions are lost; their callers start again once they know."""
        replica, network = self.replicas[number], self.setting.network
        for session in replica.end():
            self._release(session)
            self.counts.lost += 1
            noticed_at_s = self.now_s + network.notice_s
            self.at(noticed_at_s, lambda session=session, at=noticed_at_s: self._start(session.caller, at, None))  # type: ignore[misc]
        self.at(self.now_s + network.detect_s, lambda: self._know(number))
        self.at(self.now_s + back_after_s, lambda: self._come_back(number))

    def drain_in_turn(self, numbers: list[int], at_a_time: int, back_after_s: float) -> None:
        """A rolling upgrade: each is replaced ``back_after_s`` after its last session, and the next one begins when it is ready."""
        self._to_drain, self._drain_back_s = list(reversed(numbers)), back_after_s
        for _ in range(min(at_a_time, len(numbers))):
            self._drain_next()

    def _drain_next(self) -> None:
        if self._to_drain:
            number = self._to_drain.pop()
            self.replicas[number].accepts = False
            self.at(self.now_s + self.setting.network.detect_s, lambda: self._know(number))
            self._drained(self.replicas[number])

    def _drained(self, replica: Replica) -> None:
        if replica.is_up and not replica.accepts and not replica.live:
            replica.end()
            self.at(self.now_s + self._drain_back_s, lambda: self._come_back(replica.number, self._drain_next))

    def _come_back(self, number: int, then: Callable[[], None] | None = None) -> None:
        self.replicas[number].come_back()
        self.at(self.now_s + self.setting.network.detect_s, lambda: self._know(number))
        if then is not None:
            self.at(self.now_s + self.setting.network.detect_s, then)

    def _know(self, number: int) -> None:
        """The proxies see whether a replica is ready."""
        is_ready = self.replicas[number].is_up and self.replicas[number].accepts
        for view in self.proxies:
            view.ready = sorted({*view.ready, number} if is_ready else {*view.ready} - {number})
