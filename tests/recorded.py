"""What a recorder has counted, as Prometheus reads it."""

from __future__ import annotations

from bistream.metrics.recorder import Recorder


def sample(recorder: Recorder, name: str, **labels: str) -> float:
    """The value now of the sample ``bistream_<name>``, which must exist; those of a histogram end in ``_sum``, ``_count``, ``_bucket``."""
    recorder.refresh()
    value = recorder.registry.get_sample_value(f"bistream_{name}", labels)
    assert value is not None, (name, labels)
    return value


def nonzero(recorder: Recorder, name: str, label: str) -> dict[str, float]:
    """The samples ``bistream_<name>`` that are not 0, by the value of their label."""
    recorder.refresh()
    samples = [one for family in recorder.registry.collect() for one in family.samples]
    return {one.labels[label]: one.value for one in samples if one.name == f"bistream_{name}" and one.value}
