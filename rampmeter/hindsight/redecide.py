"""Makes logged decisions again by the policies of production, and tells where the log says otherwise.  Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from autoscaler.policy import evidence as scaling
from autoscaler.policy import replicas
from autoscaler.settings import AutoscalerSettings
from streams import rules
from streams.journal import POLICY_VERSION, WAITED
from streams.policy import admission, aging, cost, degrade, evidence, placement, pricing, settlement
from streams.policy.admission import Rules, Terms, Verdict
from streams.policy.evidence import Field
from streams.settings import StreamsSettings
from topics.outcomes import Outcome, Reason
from topics.records import Decision, Length, Origin, Price, Priority, ReplyAddress, Request, Tokens, Usage

VERSIONS = {
    "admission": POLICY_VERSION,
    "verification": POLICY_VERSION,
    "promotion": POLICY_VERSION,
    "settlement": POLICY_VERSION,
    "scale": scaling.POLICY_VERSION,
}
"""Stages whose entries a policy decided, and its version here.  Other entries record orders that were followed."""
CARRIED_ON = ("again", "repeat")
"""Inputs of entries that carry out what was decided before."""
_GROUNDLESS = {Reason.CANCELLED: admission.CANCELLED, Reason.UNKNOWN_MODEL: admission.POOL_GONE}
_NOWHERE = ReplyAddress(topic="")
_NO_ORIGIN = Origin(topic="", partition=0, offset=0)


class Difference(msgspec.Struct, frozen=True):
    """One field that the log and the policy tell apart; None is absent."""

    field: str
    logged: Field
    again: Field


@dataclass(frozen=True, slots=True)
class Books:
    """The settings by which decisions are made again."""

    streams: StreamsSettings
    autoscaler: AutoscalerSettings


def made_by_policy(decision: Decision) -> bool:
    """Whether a policy made it, and not an order or an earlier decision that it carries out."""
    return decision.stage in VERSIONS and not any(name in decision.inputs for name in CARRIED_ON)


def differences(decision: Decision, books: Books | None) -> list[Difference]:
    """Where the policy decides otherwise.  Without books only what follows from the entry alone is made again."""
    try:
        return list(_STAGES[decision.stage](decision, books))
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
        return [Difference("inputs", "incomplete", str(error))]


def request_of(decision: Decision) -> Request:
    """As much of the request as its entry tells; raises KeyError when something is missing."""
    inputs: Mapping[str, Any] = decision.inputs
    return Request(
        id=decision.id,
        tenant=inputs["tenant"],
        model=inputs["model"],
        priority=Priority(inputs["priority"]),
        length_claim=Length(inputs["length_claim"]),
        reply=_NOWHERE,
        origin=_NO_ORIGIN,
        arrived_s=inputs["arrived_s"],
        prompt_tokens=inputs["prompt_tokens"],
        max_tokens=inputs.get("max_tokens"),
        choices=inputs["choices"],
        deadline_s=inputs.get("deadline_s"),
        template=inputs["template"],
    )


def compared(decision: Decision, again: Mapping[str, Field]) -> Iterator[Difference]:
    """The fields that are not logged as they are now."""
    for name, value in again.items():
        if (logged := decision.inputs.get(name)) != value:
            yield Difference(name, logged, value)


def _admission(decision: Decision, books: Books | None) -> Iterator[Difference]:
    inputs = decision.inputs
    if books is not None and "long_units" in inputs:
        yield from compared(decision, _fields(_price(decision, books)))
    asked = waits = None
    if "delays_s" in inputs:
        asked, waits = evidence.terms_given(inputs)
        if books is not None:
            asked, waits = _terms(decision, asked, books), rules.of_admission(books.streams)
            yield from compared(decision, _fields(asked))
    word, reason, said = evidence.of_verdict(_verdict(decision, asked, waits))
    yield from _worded(decision, word, reason)
    yield from compared(decision, said)
    yield from _placed(decision, books)


def _price(decision: Decision, books: Books) -> Price:
    request = request_of(decision)
    inputs: Mapping[str, Any] = decision.inputs
    model = books.streams.models[request.model]
    expected = cost.expect(request, model, evidence.known_given(inputs), inputs["coefficient"])
    return pricing.decide(request, expected, model.pool, rules.of_pricing(books.streams.streams), inputs["long_units"])


def _terms(decision: Decision, logged: Terms, books: Books) -> Terms:
    request, section = request_of(decision), books.streams.streams
    inputs: Mapping[str, Any] = decision.inputs
    price = Price(
        pool=inputs["pool"],
        length=Length(inputs["length"]),
        expected_output_tokens=inputs["expected_output_tokens"],
        cost_units=inputs["cost_units"],
        service_s=inputs.get("service_s"),
    )
    return admission.terms(
        request,
        price,
        inputs["now_s"],
        max_deferral_s=section.max_deferral_s,
        max_wait_s=section.max_wait_s[request.priority],
        is_back=logged.is_back,
    )


def _verdict(decision: Decision, asked: Terms | None, waits: Rules | None) -> Verdict:
    inputs: Mapping[str, Any] = decision.inputs
    if asked is None or waits is None:
        return _GROUNDLESS[Reason(decision.reason)]
    if "mode" in inputs:
        mode, parts = evidence.parts_given(inputs)
        return degrade.decide(mode, asked, parts, waits.delays_s)
    if "degraded" in inputs:
        return degrade.decide_stopped(waits.delays_s, is_cancelled=inputs["cancelled"])
    verdict: Verdict
    if "paused" in inputs:
        verdict = admission.decide_paused(asked, waits)
    else:
        _, facts, capacity, _ = evidence.given(inputs)
        verdict = admission.decide(asked, facts, capacity, waits)
        if "overruled" in inputs:
            verdict = admission.as_reserved(verdict, is_paid=inputs["overruled"])
    return admission.decide_crammed(verdict, waits) if "crammed" in inputs else verdict


def _placed(decision: Decision, books: Books | None) -> Iterator[Difference]:
    drawn = evidence.drawn_given(decision.inputs)
    if drawn and books is not None:
        yield from compared(decision, {"owner": placement.better(drawn, rules.of_placement(books.streams.streams))})


def _promotion(decision: Decision, books: Books | None) -> Iterator[Difference]:
    late, inputs = evidence.late_given(decision.inputs), decision.inputs
    if books is not None:
        section, priority = books.streams.streams, Priority(str(inputs["lane"]).split(".")[0])
        after_s = section.aged_after_by_class.get(priority, section.aged_after_s)
        yield from compared(decision, {"threshold_s": after_s})
        late = replace(late, threshold_s=after_s)
    yield from _worded(decision, aging.decide(late), WAITED)
    yield from _placed(decision, books)


def _settlement(decision: Decision, books: Books | None) -> Iterator[Difference]:
    """The cost; what was given back follows from it in the ledger, which `rampmeter audit` proves."""
    if books is None:
        return
    inputs: Mapping[str, Any] = decision.inputs
    usage = Usage(
        id=decision.id,
        tenant=inputs["tenant"],
        pool=inputs["pool"],
        model=inputs["model"],
        priority=Priority(inputs["priority"]),
        length=Length(inputs["length"]),
        outcome=Outcome(decision.reason),
        attempt=inputs["attempt"],
        reserved_units=inputs["reserved_units"],
        tokens=Tokens(prompt=inputs["prompt_tokens"], output=inputs["output_tokens"], cached=inputs["cached_tokens"]),
        finished_s=0.0,
        consumer="",
        coefficient=inputs.get("coefficient"),
    )
    yield from compared(decision, {"real_units": round(settlement.real_units(usage, books.streams.models), 3)})


def _scale(decision: Decision, books: Books | None) -> Iterator[Difference]:
    load, current, memory, limits, now_s = scaling.given(decision.inputs)
    if books is not None:
        limits = books.autoscaler.limits(decision.id)
    made = replicas.decide(load, current, memory, limits, now_s)
    granted = decision.inputs.get("granted_replicas")
    if isinstance(granted, int):
        made = replicas.within_quota(made, current, memory, granted)
    yield from _worded(decision, scaling.verdict(made, current), made.reason)
    if load is not None:
        yield from compared(decision, {"waiting_units": load.waiting_units})
    yield from compared(decision, scaling.of_made(made))


def _nothing(decision: Decision, books: Books | None) -> Iterator[Difference]:  # noqa: ARG001 - of its shape
    """A refusal follows from its record, see `landed`."""
    yield from ()


def _worded(decision: Decision, verdict: str, reason: str) -> Iterator[Difference]:
    for name, logged, again in (("verdict", decision.verdict, verdict), ("reason", decision.reason, reason)):
        if logged != again:
            yield Difference(name, logged, str(again))


def _fields(record: msgspec.Struct) -> dict[str, Field]:
    plain: dict[str, Field] = msgspec.structs.asdict(record)
    return plain


_STAGES = {
    "admission": _admission,
    "verification": _nothing,
    "promotion": _promotion,
    "settlement": _settlement,
    "scale": _scale,
}
