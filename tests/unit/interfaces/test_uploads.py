"""Uploads: whose they are, how many, and under which names. The store alone; ``test_http`` and ``test_vendor_voices`` ask over HTTP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.voices import ListedVoice
from bistream.errors import InvalidInputError, UnknownSpeakerError
from interfaces.core.caller import Caller
from interfaces.core.errors import ForbiddenError
from interfaces.core.shares import QuotaError
from interfaces.core.voice import UPLOAD, Voice
from interfaces.core.voice_names import OPENAI_VOICES, is_reserved
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from tests.unit.interfaces.rig import ANNA

SECOND = np.zeros(16000, np.float32)
STRANGER, OTHER = Caller(None, "10.0.0.1"), Caller(None, "10.0.0.2")
VENDORS = (
    "aura-2-thalia-en",
    "flux-alexis-en",
    "longxiaochun_v2",
    "loongstella",
    "Rachel",
    "Cherry",
    "a0e99841-438c-4a64-b679-ae501e7d6091",
)


def with_secret(caller: Caller, voice: Voice) -> Caller:
    return Caller(caller.key, caller.address, secret=voice.secret)


def add(store: VoiceStore, name: str, caller: Caller = STRANGER, seconds: int = 1) -> Voice:
    return store.add(name, np.zeros(16000 * seconds, np.float32), "Words.", caller)


@pytest.mark.parametrize("name", [*OPENAI_VOICES, *VENDORS])
@pytest.mark.parametrize("change", [str, str.upper, str.title, lambda name: f" {name} ", lambda name: name.replace("a", "\uff41")])
def test_names_of_the_vendors_voices_cannot_be_taken(name: str, change: object) -> None:
    assert callable(change)
    with pytest.raises(InvalidInputError, match="built-in"):
        add(VoiceStore((ANNA,)), change(name))


def test_names_of_our_own_voices_cannot_be_taken() -> None:
    store = VoiceStore((ANNA,), aliases=(("narrator", "otto"),), default="otto")
    store.follow(lambda: (ListedVoice("felix", "preset"),))
    for name in ("anna", "ANNA", "felix", "Félix", "narrator", "otto", f"voice_{'0' * 32}", "21m00Tcm4TlvDq8ikWAM"):
        with pytest.raises(InvalidInputError, match="built-in"):
            add(store, name)
    assert store.find(add(store, "mine").id, None).name == "mine"


@given(st.text(max_size=12))
def test_other_names_are_free(name: str) -> None:
    store = VoiceStore((ANNA,))
    try:
        made = add(store, name)
    except InvalidInputError:
        assert is_reserved(name) or not name.strip() or not name.strip().isprintable() or name.strip().casefold() == "anna"
    else:
        assert store.find(made.name, None) == made


def test_an_upload_is_nobody_elses_voice_by_a_vendors_name_or_by_default() -> None:
    store = VoiceStore()
    store._uploads.put(Voice(f"voice_{'1' * 32}", "alloy", SECOND, "Words.", kind=UPLOAD))  # made before names were checked
    for name in ("alloy", ""):
        with pytest.raises(UnknownSpeakerError):
            store.find(name, None)
    own = store.add("mine", SECOND, "Words.", Caller("key", "10.0.0.1"))
    assert store.find("alloy", "key") == own  # the key's own one


def test_without_keys_only_the_secret_deletes_and_replaces_and_everybody_may_use_it() -> None:
    store = VoiceStore((ANNA,))
    voice = add(store, "mine")
    assert voice.secret and voice.secret not in repr(voice) and store.find("mine", None) == voice
    assert store.find("mine", None).secret is None
    for thief in (STRANGER, OTHER, Caller(None, "10.0.0.1", secret="x"), Caller(None, "10.0.0.1", secret="")):
        with pytest.raises(ForbiddenError):
            store.delete(voice.id, thief)
        with pytest.raises(InvalidInputError, match="somebody else"):
            add(store, "Mine", thief)
    again = add(store, "mine", with_secret(OTHER, voice), seconds=2)
    assert again.secret != voice.secret and [one.id for one in store.all_of(None)] == ["anna", again.id]
    with pytest.raises(ForbiddenError):
        store.delete(again.id, with_secret(STRANGER, voice))
    store.delete(again.id, with_secret(STRANGER, again))
    assert store.all_of(None) == [ANNA]


def test_with_keys_an_upload_is_its_keys_and_has_no_secret() -> None:
    store, mine, theirs = VoiceStore((ANNA,)), Caller("one", "10.0.0.1"), Caller("two", "10.0.0.1")
    voice = add(store, "mine", mine)
    assert voice.secret is None and add(store, "mine", theirs).owner == "two"
    for thief in (theirs, STRANGER, Caller("two", "10.0.0.1", secret="")):
        with pytest.raises(UnknownSpeakerError):
            store.delete(voice.id, thief)
    store.delete(voice.id, mine)


@given(seconds=st.lists(st.integers(1, 4), max_size=30), callers=st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_one_address_has_at_most_its_share_of_voices_and_of_bytes(seconds: list[int], callers: list[int]) -> None:
    store = VoiceStore((ANNA,), limits=InterfaceLimits(max_voices=16, max_voices_bytes=40 * 64_000))
    sizes: dict[int, list[int]] = {number: [] for number in range(4)}
    for number, (length, caller) in enumerate(zip(seconds, callers, strict=False)):
        own, everybody = sizes[caller], [size for held in sizes.values() for size in held]
        fits = len(own) < 4 and sum(own) + length <= 10 and len(everybody) < 16 and sum(everybody) + length <= 40
        try:
            add(store, f"v{number}", Caller(None, f"10.0.0.{caller}"), length)
        except QuotaError as error:
            assert not fits and not error.retryable
        else:
            assert fits
            own.append(length)


def test_shares_and_secrets_outlive_the_process(tmp_path: Path) -> None:
    limits = InterfaceLimits(max_voices=4)
    voice = add(VoiceStore((ANNA,), tmp_path, limits=limits), "mine")
    later = VoiceStore((ANNA,), tmp_path, limits=limits)
    with pytest.raises(QuotaError):
        add(later, "second")
    with pytest.raises(ForbiddenError):
        later.delete(voice.id, STRANGER)
    later.delete(voice.id, with_secret(OTHER, voice))
    assert list(tmp_path.glob("*.npz")) == [] and add(later, "second")
