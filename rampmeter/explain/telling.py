"""Turns the records of our topics into the steps of a request.  Pure; takes no body and no words of an engine."""

from collections.abc import Iterator, Mapping

from rampmeter.explain.events import Event, Field, Price, Step
from streams.policy import cost
from topics.outcomes import Outcome
from topics.records import DeadLetter, Decision, Reply, Usage, Work
from topics.settings import Model

_ROUNDED = 0.002
"""By which logged costs may be off: they have three decimals."""
_VERDICTS = {"hold": Step.HELD, "defer": Step.DEFERRED, "reject": Step.REJECTED, "admit": Step.ADMITTED}
_ADMISSION = (
    "level", "budget_wait_s", "lane_open_requests", "mine_open_units", "lane_open_units", "attained_units", "deferrals",
    "wait_s", "delay_s", "wait_estimate_s", "position", "retry_after_s", "partition", "placed", "drawn", "again",
    "mode",
)  # fmt: skip
_PROMOTION = (
    "age_s", "threshold_s", "lane_wait_s", "aged_wait_s", "room_records", "room_units", "partition", "placed", "drawn",
)  # fmt: skip
_SETTLEMENT = ("attempt", "partial", "reserved_units", "real_units", "refunded_units")


def of_decision(decision: Decision, record: str) -> Iterator[Event]:
    """The steps behind a logged decision."""
    match decision.stage:
        case "verification":
            yield _event(decision, record, Step.REFUSED, f"refused unpriced: {decision.reason}", ("detail",))
        case "admission":
            if "long_units" in decision.inputs:
                inputs = decision.inputs
                what = (
                    f"priced at {inputs.get('cost_units')} units, {inputs.get('priority')} and {inputs.get('length')}"
                )
                yield _event(decision, record, Step.PRICED, what, ("cost_units", "coefficient", "service_s"))
            step = _VERDICTS.get(decision.verdict)
            if step is not None:
                yield _event(decision, record, step, _admission(decision), _ADMISSION)
        case "promotion":
            yield _event(decision, record, Step.PROMOTED, _promotion(decision), _PROMOTION)
        case "settlement":
            yield _event(decision, record, Step.SETTLED, _settlement(decision), _SETTLEMENT)
        case "control":
            is_order = decision.reason == "request"
            step = Step.CANCEL_ORDERED if is_order else Step.CANCELLED
            what = "its cancel was ordered" if is_order else f"cancelled while {decision.inputs.get('where')}"
            yield _event(decision, record, step, what, ("ordered_by", "attempt", "where", "order"))


def of_work(work: Work, family: str, topic: str, record: str, at_s: float) -> Event:
    """A record on a lane, or on its way back to one."""
    number = f"attempt {work.attempt}"
    if family == "retries":
        return Event(at_s, Step.RETRIED, f"{number} waits on {topic}", record=record, facts={"attempt": work.attempt})
    if family == "deferred":
        return Event(at_s, Step.DEFERRED, f"waits on {topic}", record=record, facts={"deferrals": work.deferrals})
    facts: dict[str, Field] = {
        "attempt": work.attempt,
        "position": work.position,
        "wait_estimate_s": work.wait_estimate_s,
        "unreserved": work.unreserved or None,
    }
    return Event(at_s, Step.PLACED, f"on lane {record}, {number}", record=record, facts=_said(facts))


def of_reply(reply: Reply, record: str, at_s: float) -> Iterator[Event]:
    """A terminal reply, and what its own clock tells of the way there."""
    if reply.repeat:
        yield Event(at_s, Step.REPEATED, "asked again: got a copy of the first answer", reply.consumer, record)
        return
    reason = "" if reply.reason == "none" else f" ({reply.reason})"
    # Only an answer that no engine gave has words that are all ours.
    detail = None if reply.outcome in (Outcome.COMPLETED, Outcome.FAILED) else reply.detail
    facts = _said({"detail": detail, "chunks": reply.chunks, "retry_after_s": reply.retry_after_s,
                   "attempt": reply.attempt, "position": reply.position})  # fmt: skip
    yield Event(at_s, Step.ANSWERED, f"answered {reply.outcome}{reason}", reply.consumer, record, facts)
    timing = reply.timing
    if timing is not None and timing.first_token_s is not None:
        yield Event(timing.first_token_s, Step.FIRST_TOKEN, "first token", reply.consumer, record)


def of_usage(usage: Usage, record: str) -> Iterator[Event]:
    """An attempt in an engine: its beginning and its end; of one that never began only the end."""
    if usage.service_s is not None:
        began_s = usage.finished_s - usage.service_s
        yield Event(began_s, Step.STARTED, f"attempt {usage.attempt} begins", usage.consumer, record)
    step = Step.FAILED if usage.partial else Step.ENDED
    word = "failed, to be tried again" if usage.partial else f"ended {usage.outcome}"
    facts = _said(
        {
            "prompt_tokens": usage.tokens.prompt,
            "output_tokens": usage.tokens.output,
            "cached_tokens": usage.tokens.cached or None,
            "service_s": usage.service_s,
            "engine_s": usage.engine_s,
        }
    )
    yield Event(usage.finished_s, step, f"attempt {usage.attempt} {word}", usage.consumer, record, facts)


def of_letter(letter: DeadLetter, number: int, record: str) -> Event:
    """A dead letter; its number is what `rampmeter dlq` takes."""
    facts: dict[str, Field] = {"letter": number, "detail": letter.detail}
    return Event(letter.at_s, Step.DEAD_LETTERED, f"dead letter {number}: {letter.reason}", letter.by, record, facts)


def price_in(decision: Decision, models: Mapping[str, Model]) -> Price | None:
    """What the first entry of an admission says of the price; None when it is another entry."""
    inputs = decision.inputs
    if decision.stage != "admission" or "long_units" not in inputs:
        return None
    units, output, coefficient = (
        _number(inputs, name) for name in ("cost_units", "expected_output_tokens", "coefficient")
    )
    estimated = _number(inputs, "prompt_tokens")
    if units is None or output is None or estimated is None:
        return None
    model = models.get(str(inputs.get("model")))
    ratio = _number(inputs, "known_prompt_ratio")
    prompt = round(estimated) if model is None else cost.real_prompt_tokens(round(estimated), model, ratio)
    parts = None if model is None else (
        model.units(prompt, 0, coefficient=coefficient), model.units(0, output, coefficient=coefficient)
    )  # fmt: skip
    if parts is not None and abs(sum(parts) - units) > _ROUNDED:
        parts = None
    return Price(
        cost_units=units,
        coefficient=coefficient,
        prompt_tokens=prompt,
        expected_output_tokens=round(output),
        input_units=None if parts is None else round(parts[0], 3),
        output_units=None if parts is None else round(parts[1], 3),
        length=str(inputs.get("length")),
        long_units=_number(inputs, "long_units"),
        is_learned="known_output_tokens" in inputs,
    )


def _admission(decision: Decision) -> str:
    inputs, reason = decision.inputs, decision.reason
    match decision.verdict:
        case "admit":
            return "admitted" + (" again" if "again" in inputs else "")
        case "hold":
            return f"waits in memory: {reason}"
        case "defer":
            return f"deferred for {inputs.get('delay_s')} s: {reason}"
        case _:
            return f"rejected: {reason}"


def _promotion(decision: Decision) -> str:
    age_s, threshold_s = (_number(decision.inputs, name) for name in ("age_s", "threshold_s"))
    if age_s is None or threshold_s is None:
        return "promoted"
    return f"promoted at {age_s:.1f} s of age, {threshold_s:g} s are the threshold"


def _settlement(decision: Decision) -> str:
    units, attempt = _number(decision.inputs, "real_units"), decision.inputs.get("attempt")
    word = "told again" if decision.verdict == "repeat" else f"charged {units} units"
    return f"attempt {attempt}: {word}"


def _event(decision: Decision, record: str, step: Step, what: str, names: tuple[str, ...]) -> Event:
    facts = _said({name: decision.inputs.get(name) for name in names})
    # The entry is written after what follows from it: when it was decided is one of its inputs.
    known = {name: _number(decision.inputs, name) for name in ("seen_s", "now_s")}
    is_first_look = step in (Step.PRICED, Step.REFUSED)
    decided_s = (known["seen_s"] if is_first_look else None) or known["now_s"] or decision.at_s
    return Event(decided_s, step, what, decision.by, record, facts)


def _said(facts: Mapping[str, Field]) -> dict[str, Field]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _number(inputs: Mapping[str, Field], name: str) -> float | None:
    value = inputs.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
