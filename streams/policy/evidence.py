"""What a decision of admission was based on, as flat fields for the decision log, and back again.  Pure."""

from collections.abc import Mapping
from typing import Any

from streams.policy.admission import Facts, Rules, Terms
from streams.policy.sharing import Capacity, Share

Field = float | int | str | bool | None

_SHARE = Share.__struct_fields__
_TERMS = Terms.__struct_fields__
_CAPACITY = {"capacity_units_per_s": "units_per_s", "capacity_units": "units"}


def of(asked: Terms, facts: Facts, capacity: Capacity, rules: Rules) -> dict[str, Field]:
    """All that `admission.decide` looked at; `given` reads it back."""
    return {
        **{name: getattr(asked, name) for name in _TERMS},
        **{name: getattr(facts.share, name) for name in _SHARE},
        "level": facts.level,
        "budget_wait_s": facts.budget_wait_s,
        "never_cap_units": facts.never_cap_units,
        "attained_units": facts.attained_units,
        **{name: getattr(capacity, attribute) for name, attribute in _CAPACITY.items()},
        "window_s": rules.window_s,
        "hold_s": rules.hold_s,
        "delays_s": ",".join(map(str, rules.delays_s)),
    }


def given(inputs: Mapping[str, Any]) -> tuple[Terms, Facts, Capacity, Rules]:
    """The arguments of `admission.decide` behind logged inputs; raises KeyError when some are missing."""
    asked = Terms(**{name: inputs[name] for name in _TERMS})
    facts = Facts(
        share=Share(**{name: inputs[name] for name in _SHARE}),
        level=inputs["level"],
        budget_wait_s=inputs["budget_wait_s"],
        never_cap_units=inputs["never_cap_units"],
        attained_units=inputs["attained_units"],
    )
    capacity = Capacity(**{attribute: inputs[name] for name, attribute in _CAPACITY.items()})
    rules = Rules(inputs["window_s"], inputs["hold_s"], tuple(map(int, inputs["delays_s"].split(","))))
    return asked, facts, capacity, rules
