"""What past requests of a kind needed, and what that says of the next one.  Pure."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streams.policy.histogram import Histogram
from topics.notes import Estimate
from topics.outcomes import Outcome
from topics.records import Request, Usage

Row = dict[str, dict[str, float]]
"""Of one kind in one window: a histogram by what it counts."""

_NEWS_RATIO = 0.1
_PARTS = ("output_tokens", "service_s", "prompt_ratio")


class Kind(NamedTuple):
    """Requests that are taken to be alike."""

    tenant: str
    model: str
    template: str

    @property
    def key(self) -> str:
        """Key of its estimates and rows; no tenant has a `|` in its name."""
        return f"{self.tenant}|{self.model}|{self.template}"


class Sample(NamedTuple):
    """What one answered request needed, in the order of the histograms; None is unknown."""

    output_tokens: int | None
    service_s: float | None
    prompt_ratio: float | None


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that decide."""

    quantile: float
    min_samples: int
    refresh_s: float
    """An estimate is told again after this, changed or not, so that readers know that it still holds."""


def template(request: Request) -> str:
    """The template by which history is kept: requests for several choices are a kind of their own."""
    return request.template if request.choices == 1 else f"{request.template}*{request.choices}"


def sample(usage: Usage) -> Sample | None:
    """What can be learned of a usage record: only whole answers say how long answers are."""
    if usage.outcome is not Outcome.COMPLETED or usage.partial:
        return None
    expected = usage.expected_prompt_tokens
    prompt_ratio = usage.tokens.prompt / expected if expected and usage.tokens.prompt else None
    return Sample(usage.tokens.output, usage.service_s, prompt_ratio)


def add(row: Mapping[str, Mapping[str, float]], samples: Iterable[Sample]) -> Row:
    """The row with these samples counted."""
    parts = [Histogram.of(row.get(part, {})) for part in _PARTS]
    for values in samples:
        for part, value in zip(parts, values, strict=True):
            if value is not None:
                part.add(value)
    return {name: part.row() for name, part in zip(_PARTS, parts, strict=True) if part.weights}


def estimate(kind: Kind, rows: Collection[Mapping[str, Mapping[str, float]]], now_s: float, rules: Rules) -> Estimate:
    """What the rows of a kind say together; a part with too few samples says nothing."""
    output, service, prompt = (Histogram.of(*(row.get(part, {}) for row in rows)) for part in _PARTS)

    def known(part: Histogram, value: float | None) -> float | None:
        return value if part.total >= rules.min_samples else None

    tokens = known(output, output.quantile(rules.quantile))
    return Estimate(
        tenant=kind.tenant,
        model=kind.model,
        template=kind.template,
        at_s=now_s,
        samples=int(output.total),
        output_tokens=None if tokens is None else max(1, math.ceil(tokens) - 1),  # the largest whole number inside
        service_s=known(service, service.quantile(rules.quantile)),
        prompt_ratio=known(prompt, prompt.centre(0.5)),
    )


def is_news(old: Estimate | None, new: Estimate, rules: Rules) -> bool:
    """Whether readers of `old` would decide otherwise with `new`, or would soon take `old` for forgotten."""
    if old is None:
        return any(getattr(new, part) is not None for part in _PARTS)
    if new.at_s - old.at_s >= rules.refresh_s:
        return True
    return any(_differs(getattr(old, part), getattr(new, part)) for part in _PARTS)


def _differs(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > _NEWS_RATIO * old
