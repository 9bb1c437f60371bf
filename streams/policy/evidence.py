"""What decisions of streams were based on, as flat fields for the decision log, and back again.  Pure.

What is unknown is None here and stays off the wire, so what reads it back asks for it with `get`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streams.policy.admission import Admit, Defer, Facts, Hold, Reject, Rules, Terms, Verdict
from streams.policy.aging import Late
from streams.policy.degrade import Limit, Local, Mode
from streams.policy.placement import Owner, Spot
from streams.policy.sharing import Capacity, Share
from topics.notes import Estimate
from topics.outcomes import Reason

Field = float | int | str | bool | None

_SHARE = tuple(name for name in Share.__struct_fields__ if name != "others")
_TERMS = Terms.__struct_fields__
_CAPACITY = {"capacity_units_per_s": "units_per_s", "capacity_units": "units"}
_KNOWN = {"known_output_tokens": "output_tokens", "known_prompt_ratio": "prompt_ratio"}


def of(asked: Terms, facts: Facts, capacity: Capacity, rules: Rules) -> dict[str, Field]:
    """All that `admission.decide` looked at; `given` reads it back."""
    return {
        **of_terms(asked, rules),
        **{name: getattr(facts.share, name) for name in _SHARE},
        "others": ";".join(f"{units!r} {weight_ratio!r}" for units, weight_ratio in facts.share.others),
        "level": facts.level,
        "budget_wait_s": facts.budget_wait_s,
        "never_cap_units": facts.never_cap_units,
        "attained_units": facts.attained_units,
        **{name: getattr(capacity, attribute) for name, attribute in _CAPACITY.items()},
    }


def given(inputs: Mapping[str, Any]) -> tuple[Terms, Facts, Capacity, Rules]:
    """The arguments of `admission.decide` behind logged inputs; raises KeyError when some are missing."""
    asked, rules = terms_given(inputs)
    facts = Facts(
        share=Share(**{name: inputs[name] for name in _SHARE}, others=_others_given(inputs["others"])),
        level=inputs["level"],
        budget_wait_s=inputs["budget_wait_s"],
        never_cap_units=inputs.get("never_cap_units"),
        attained_units=inputs["attained_units"],
    )
    capacity = Capacity(**{attribute: inputs.get(name) for name, attribute in _CAPACITY.items()})
    return asked, facts, capacity, rules


def _others_given(text: str) -> tuple[tuple[float, float], ...]:
    pairs = [pair.split() for pair in text.split(";") if pair]
    return tuple((float(units), float(weight_ratio)) for units, weight_ratio in pairs)


def of_terms(asked: Terms, rules: Rules) -> dict[str, Field]:
    """What a verdict that needs no ledger looked at; `terms_given` reads it back."""
    return {
        **{name: getattr(asked, name) for name in _TERMS},
        "window_s": rules.window_s,
        "hold_s": rules.hold_s,
        "delays_s": ",".join(map(str, rules.delays_s)),
    }


def terms_given(inputs: Mapping[str, Any]) -> tuple[Terms, Rules]:
    """The terms and rules behind logged inputs; raises KeyError when some are missing."""
    asked = Terms(**{name: inputs[name] for name in _TERMS})
    return asked, Rules(inputs["window_s"], inputs["hold_s"], tuple(map(int, inputs["delays_s"].split(","))))


def of_price(known: Estimate | None, long_units: float) -> dict[str, Field]:
    """What a price followed from beside the request, and what the price itself says; `known_given` reads it back."""
    learned = {} if known is None else {name: getattr(known, part) for name, part in _KNOWN.items()}
    return {**learned, "long_units": long_units}


def known_given(inputs: Mapping[str, Any]) -> Estimate:
    """What was known of the like of a logged request."""
    parts = {part: inputs.get(name) for name, part in _KNOWN.items()}
    return Estimate(tenant="", model="", template="", at_s=0.0, samples=0, service_s=inputs.get("service_s"), **parts)


def of_parts(mode: Mode, parts: Sequence[Local]) -> dict[str, Field]:
    """What `degrade.decide` looked at beside the terms: level, refill and cap of each budget's part, `p` for paced."""
    shown = [
        f"{part.level_units!r} {part.limit.refill_units_per_s!r} {part.limit.cap_units!r}{' p' * part.limit.paced}"
        for part in parts
    ]
    return {"mode": mode, "parts": ";".join(shown)}


def parts_given(inputs: Mapping[str, Any]) -> tuple[Mode, tuple[Local, ...]]:
    """The mode and the parts of budgets behind logged inputs."""
    shown = [text.split() for text in inputs["parts"].split(";") if text]
    return inputs["mode"], tuple(
        Local(float(level), 0.0, Limit(float(refill), float(cap), bool(paced))) for level, refill, cap, *paced in shown
    )


def of_spot(spot: Spot) -> dict[str, Field]:
    """Where work went, and between whom that was decided; `drawn_given` reads those back.

    Each as name, load, rate, free memory and latency, `-` where unknown; the only one as its name.  `owner` is the
    number of the chosen one.
    """
    said: dict[str, Field] = {"partition": spot.partition, "placed": spot.case.value}
    if spot.choice is not None:
        drawn = spot.choice.drawn
        shown = [" ".join([o.consumer, *(map(_shown, _scored(o)) if len(drawn) > 1 else ())]) for o in drawn]
        said |= {"owner": spot.choice.number, "drawn": ";".join(shown)}
    return said


def drawn_given(inputs: Mapping[str, Any]) -> tuple[Owner, ...]:
    """The owners that were drawn for logged work."""
    return tuple(_owner(*text.split(" ")) for text in str(inputs.get("drawn") or "").split(";") if text)


def late_given(inputs: Mapping[str, Any]) -> Late:
    """The argument of `aging.decide` behind logged inputs; raises KeyError when some are missing."""
    return Late(
        age_s=inputs["age_s"],
        threshold_s=inputs["threshold_s"],
        lane_wait_s=inputs.get("lane_wait_s"),
        aged_wait_s=inputs.get("aged_wait_s"),
        room_records=inputs["room_records"],
        room_units=inputs.get("room_units"),
    )


def of_verdict(verdict: Verdict) -> tuple[str, Reason, dict[str, Field]]:
    """A verdict as a word, its reason, and what else it says."""
    match verdict:
        case Admit(wait_estimate_s, position):
            return "admit", Reason.NONE, {"wait_estimate_s": wait_estimate_s, "position": position}
        case Hold(wait_s, reason):
            return "hold", reason, {"wait_s": wait_s}
        case Defer(delay_s, reason):
            return "defer", reason, {"delay_s": delay_s}
        case Reject():
            return "reject", verdict.reason, {"retry_after_s": verdict.retry_after_s}


def _scored(owner: Owner) -> tuple[float | None, ...]:
    return owner.load_units, owner.units_per_s, owner.free_memory_ratio, owner.latency_s


def _owner(name: str, *shown: str) -> Owner:
    scored = [None if text == "-" else float(text) for text in shown or "----"]
    load_units, units_per_s, free_ratio, latency_s = scored
    return Owner(
        consumer=name,
        partitions=(),
        at_s=0.0,
        moved_s=0.0,
        load_units=load_units or 0.0,
        units_per_s=units_per_s,
        free_memory_ratio=free_ratio,
        latency_s=latency_s,
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else repr(value)
