"""Options of the clients for API keys and TLS: what is wrong ends the program with a sentence, and no key is ever shown."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks._callers import Speech
from bistream.client.connection import API_KEY_VARIABLE, ClientSecurity, add_security_arguments, security_of

KEY = "not-to-be-shown-1234"


def read(arguments: list[str], environment: dict[str, str] | None = None) -> ClientSecurity:
    parser = argparse.ArgumentParser()
    add_security_arguments(parser)
    return security_of(parser, parser.parse_args(arguments), environment or {})


def test_the_key_comes_from_the_option_or_the_environment() -> None:
    assert read(["--api-key", KEY]) == read([], {API_KEY_VARIABLE: KEY}) == read(["--api-key", KEY], {API_KEY_VARIABLE: "x" * 16})
    assert read(["--api-key", KEY]).headers() == {"authorization": f"Bearer {KEY}"}


def test_a_key_is_in_no_representation() -> None:
    security = read(["--api-key", KEY, "--tls"])
    assert KEY not in repr(security) and KEY not in repr(Speech("s", "t", security=security))
    assert security.tls and security.grpc_options()["ssl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api-key", f"{KEY} x"], "without blanks"),
        (["--api-key", f"{KEY}\n"], "without blanks"),
        (["--api-key", f"{KEY}\u00e9"], "ASCII"),
        (["--api-key", ""], "without blanks"),
        (["--tls-certificate", "x"], "belong together"),
        (["--tls-key", "x"], "belong together"),
        (["--tls-ca", "none.pem"], "--tls-ca none.pem is not a file"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(arguments)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and words in told and KEY not in told


def test_a_damaged_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n", encoding="utf-8")
    for arguments in (["--tls-ca", str(damaged)], ["--tls-certificate", str(damaged), "--tls-key", str(damaged)]):
        with pytest.raises(SystemExit) as ended:
            read(arguments)
        assert ended.value.code == 2 and "cannot be used" in capsys.readouterr().err
