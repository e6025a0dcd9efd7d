"""One metric family: its name, help text and type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "bascule"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric family, and how its samples are made from a statistic."""

    name: str
    """Without the prefix, and without the suffix `_total` of counters."""
    about: str
    counter: bool = True
    label: str | tuple[str, ...] = ()
    """Label names, if the statistic is a mapping from label values. Several, if its keys are
    tuples or its values are mappings."""
    scale: float = 1.0
    """Factor from the statistic to the base unit (seconds, bytes)."""
    histogram: bool = False
    """The statistic is a `metrics.Histogram`; empty histograms are left out."""

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def full_name(self) -> str:
        """The name in `/metrics`, with prefix and suffix."""
        total = "_total" if self.counter and not self.histogram else ""
        return f"{PREFIX}_{self.name}{total}"

    @property
    def kind(self) -> str:
        return "histogram" if self.histogram else "counter" if self.counter else "gauge"


def gauge(
    name: str, about: str, *, label: str | tuple[str, ...] = (), scale: float = 1.0
) -> MetricFamily:
    return MetricFamily(name, about, counter=False, label=label, scale=scale)


def histogram(
    name: str, about: str, *, label: str | tuple[str, ...] = (), scale: float = 1.0
) -> MetricFamily:
    return MetricFamily(name, about, label=label, scale=scale, histogram=True)
