"""What the last sessions spoke at their ends, for sessions that continue them: ``beginning`` of the layouts decides how. Thread-safe.

A session is remembered where it has spoken all of its text, so that its last segment, text and speech, is aligned exactly. An anchor has at
most the text and speech of one sequence, 4 bytes an id: 4096 of them take a few megabytes.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

from bistream.contract.earlier_sessions import EarlierSessions
from bistream.metrics.catalogue import LM_CONTINUED
from bistream.metrics.recorder import Recorder
from bistream.text2token.layout import Anchor, SessionLayout
from bistream.text2token.one_table.layouts import SentenceLayouts
from bistream.text2token.session_layout import PromptIds, SessionLayouts


class SpokenBefore:
    def __init__(self, layouts: SessionLayouts | SentenceLayouts, clock: Callable[[], float], recorder: Recorder) -> None:
        self._layouts = layouts
        self._counters = {outcome: recorder.counter(LM_CONTINUED, outcome) for outcome in LM_CONTINUED.labels["outcome"]}
        self._lock = threading.Lock()
        self._live: dict[str, SessionLayout] = {}
        self._anchors = EarlierSessions[Anchor](clock)

    def beginning(self, prompt: PromptIds, is_whole: bool, earlier: str | None) -> PromptIds | None:
        """The prompt of a session's first sequence, where it is another than ``prompt``. earlier: the session that it continues; whether
        both have one voice, the caller has checked."""
        if earlier is None:
            return None
        with self._lock:
            anchor = self._anchors.find(earlier)
        first = None if anchor is None else self._layouts.beginning(prompt, is_whole, anchor)
        self._counters["unknown" if anchor is None else "left_out" if first is None else "joined"].inc()
        return first

    def begun(self, session_id: str, layout: SessionLayout) -> None:
        with self._lock:
            self._live[session_id] = layout

    def ended(self, session_id: str, is_finished: bool) -> None:
        """is_finished: without an error, which may come after all was spoken."""
        with self._lock:
            layout = self._live.pop(session_id, None)
            anchor = layout.anchor if layout is not None and is_finished else None
            if anchor is not None and anchor.speech:
                self._anchors.add(session_id, Anchor(array("i", anchor.text), array("i", anchor.speech)))
