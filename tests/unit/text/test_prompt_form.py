"""Instruction and transcript of each family."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text.prompt_form import PromptForm, make_prompt_form, own_instruction
from bistream.text.special_tokens import END_OF_PROMPT

DEFAULT = COSYVOICE3.default_instruction
CANTONESE = "\u8bf7\u7528\u5e7f\u4e1c\u8bdd\u8868\u8fbe\u3002"  # one of upstream's instruct_list
TEXT = st.text(max_size=30).filter(lambda text: END_OF_PROMPT not in text)


@given(instruct_text=TEXT, prompt_text=TEXT)
def test_cosyvoice2_gets_what_the_request_has(instruct_text: str, prompt_text: str) -> None:
    form = make_prompt_form(COSYVOICE2.default_instruction, instruct_text, prompt_text)
    assert form == PromptForm(instruct_text + END_OF_PROMPT if instruct_text else "", prompt_text)
    assert own_instruction(COSYVOICE2.default_instruction, f"a{END_OF_PROMPT}b".encode()) == ("", f"a{END_OF_PROMPT}b".encode())


@given(instruct_text=TEXT, prompt_text=TEXT, transcript=TEXT)
def test_cosyvoice3_has_exactly_one_instruction_with_its_mark_at_the_end(instruct_text: str, prompt_text: str, transcript: str) -> None:
    for own in (prompt_text, f"{prompt_text}{END_OF_PROMPT}{transcript}"):
        form = make_prompt_form(DEFAULT, instruct_text, own)
        assert form.instruction.endswith(END_OF_PROMPT) and form.instruction.count(END_OF_PROMPT) == 1
        assert form.transcript == (own.partition(END_OF_PROMPT)[2] if END_OF_PROMPT in own else own)


@pytest.mark.parametrize(
    ("instruct_text", "prompt_text", "expected"),
    [  # as upstream's example.py and Triton orchestrator write them
        ("", "", PromptForm(f"{DEFAULT}{END_OF_PROMPT}", "")),
        ("", "What she said.", PromptForm(f"{DEFAULT}{END_OF_PROMPT}", "What she said.")),
        ("", f"{DEFAULT}{END_OF_PROMPT}What she said.", PromptForm(f"{DEFAULT}{END_OF_PROMPT}", "What she said.")),
        (CANTONESE, "", PromptForm(f"{DEFAULT} {CANTONESE}{END_OF_PROMPT}", "")),
        (f"{DEFAULT} Slowly.{END_OF_PROMPT}", "", PromptForm(f"{DEFAULT} Slowly.{END_OF_PROMPT}", "")),
        (f"{DEFAULT} Slowly.", "", PromptForm(f"{DEFAULT} Slowly.{END_OF_PROMPT}", "")),
        ("", f"Slowly.{END_OF_PROMPT}", PromptForm(f"Slowly.{END_OF_PROMPT}", "", has_speech=False)),
        ("Loudly.", f"Slowly.{END_OF_PROMPT}Said.", PromptForm(f"{DEFAULT} Loudly.{END_OF_PROMPT}", "Said.")),
        ("", f"a{END_OF_PROMPT}b{END_OF_PROMPT}c", PromptForm(f"a{END_OF_PROMPT}", f"b{END_OF_PROMPT}c")),
    ],
)  # fmt: skip
def test_prompts_of_cosyvoice3(instruct_text: str, prompt_text: str, expected: PromptForm) -> None:
    assert make_prompt_form(DEFAULT, instruct_text, prompt_text) == expected


def test_a_text_may_begin_with_its_own_instruction() -> None:
    text = f"{DEFAULT}{END_OF_PROMPT}[breath]\u56e0\u4e3a".encode()
    assert own_instruction(DEFAULT, text) == (f"{DEFAULT}{END_OF_PROMPT}", "[breath]\u56e0\u4e3a".encode())
    assert own_instruction(DEFAULT, b"plain") == ("", b"plain")
    assert own_instruction(DEFAULT, b"\xff" + text) == ("", b"\xff" + text)
