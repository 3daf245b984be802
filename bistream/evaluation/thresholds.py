"""Conditions under which an evaluation fails: ``wer>3%``, ``wer:one_shot>3%``, ``word_by_word-one_shot>0.5%``, ``dnsmos:A-B<-0.1``. Pure.

Left of the sign a metric, a form or a difference of two forms (A-B), or METRIC:FORM and METRIC:A-B. A form without a metric means ``wer``,
a metric without a form any form that has it. Values are those of all sets together, without their intervals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bistream.errors import InvalidInputError
from bistream.evaluation.metrics import BY_NAME, Metric
from bistream.evaluation.statistics import Estimate

Means = Mapping[str, Mapping[str, Estimate]]  # by form or "A-B", then by metric
_CONDITION = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])\s*(?P<number>[-+]?\d+(\.\d+)?)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Threshold:
    """names: forms or differences, of which one is enough."""

    text: str
    metric: Metric
    names: tuple[str, ...]
    is_above: bool
    bound: float

    def failures(self, means: Means) -> list[str]:
        """A sentence for each name for which the condition holds; one where no name has the value: what was not judged has not passed."""
        values = {name: means[name][self.metric.name].value for name in self.names if self.metric.name in means.get(name, {})}
        if not values:
            return [f"{self.text}: {' and '.join(self.names)} {'has' if len(self.names) == 1 else 'have'} no {self.metric.name}."]
        return [
            f"{self.text}: {self.metric.name} of {name} is {shown(value, self.metric)}."
            for name, value in values.items()
            if value != self.bound and (value > self.bound) == self.is_above
        ]


def shown(value: float, metric: Metric) -> str:
    return f"{100 * value:.{metric.digits}f} %" if metric.is_share else f"{value:.{metric.digits}f}"


def parse_threshold(text: str, forms: Sequence[str]) -> Threshold:
    """forms: the names that there are. Raises ``InvalidInputError``."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} is no condition; write one such as 'wer>3%' or 'word_by_word-one_shot>0.5%'.")
    left, scale = match["left"].strip(), 0.01 if match["percent"] else 1.0
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in forms}
    names |= {name: (name,) for one in forms for other in forms if one != other and (name := f"{one}-{other}")}
    head, _, tail = left.partition(":")
    if left in names:
        metric, chosen = BY_NAME["wer"], names[left]
    elif head in BY_NAME and (not tail or tail in names):
        metric, chosen = BY_NAME[head], names.get(tail, tuple(forms))
    else:
        raise InvalidInputError(
            f"{left!r} is neither a metric ({', '.join(BY_NAME)}), nor a form ({', '.join(forms)}) or the difference of two, A-B."
        )
    return Threshold(text, metric, chosen, match["sign"] == ">", scale * float(match["number"]))
