"""The list of metrics: names that Prometheus accepts, few series, labels that match the code they count."""

from __future__ import annotations

import re

from bistream.contract.fields import CONTRACTS
from bistream.errors import ERRORS_BY_CODE, BistreamError
from bistream.metrics.catalogue import ALL, BY_NAME, END_REASONS, ERROR_CODES, SESSIONS, MetricType
from bistream.sessions.session import SessionState
from bistream.types import FinishReason

MOST_SERIES = 1000  # of one server, all buckets included


def test_names_follow_prometheus_conventions() -> None:
    assert len(BY_NAME) == len(ALL)
    for family in ALL:
        assert re.fullmatch(r"bistream_[a-z][a-z0-9_]*", family.name)
        assert (family.kind is MetricType.COUNTER) == family.name.endswith("_total")
        assert family.help and "\n" not in family.help and "\\" not in family.help
        assert list(family.buckets) == sorted(set(family.buckets))
        assert bool(family.buckets) == (family.kind is MetricType.HISTOGRAM)
        for values in family.labels.values():
            assert all(re.fullmatch(r"\w+", value) for value in values) and len(set(values)) == len(values)


def test_the_number_of_series_is_small() -> None:
    models = len(CONTRACTS)
    series = sum((len(family.known_labels) or models) * (len(family.buckets) + 3 if family.buckets else 1) for family in ALL)
    assert series < MOST_SERIES


def test_labels_cover_what_the_code_can_report() -> None:
    assert set(SESSIONS.labels["state"]) == {state.value for state in SessionState}
    assert {reason.value for reason in FinishReason} - {"error"} <= set(END_REASONS)
    codes = {BistreamError.code, *ERRORS_BY_CODE}
    assert set(ERROR_CODES) == codes and {code.lower() for code in codes} <= set(END_REASONS)
