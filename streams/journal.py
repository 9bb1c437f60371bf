"""The decision log: what was decided, by whom, and on what.  Builds records, does not send; no prompt text, ever."""

from collections.abc import Mapping

from streams import limits, metrics
from streams.ledger_wire import Settled
from streams.outbox import Outgoing
from streams.policy.admission import Verdict
from streams.policy.evidence import Field, of_verdict
from streams.policy.verification import Refusal
from streams.settings import StreamsSettings
from topics import codec
from topics.clock import Clock
from topics.notes import Balances
from topics.records import Control, ControlAction, Decision, Usage, Work

POLICY_VERSION = "4"
WAITED = "waited"
"""The reason of every promotion."""


class Journal:
    """Builds the log entries of one process."""

    def __init__(self, settings: StreamsSettings, clock: Clock, by: str) -> None:
        """`by` names this worker in decisions."""
        self._clock, self._by, self._section = clock, by, settings.streams
        self._hash, self._shadow = settings.short_hash(), settings.streams.shadow
        self._topic = settings.topic("decisions")
        self._balances = settings.topic("balances")

    def admission(self, work: Work, verdict: Verdict, evidence: Mapping[str, Field]) -> Outgoing:
        """What became of a priced request."""
        request, price = work.request, work.price
        word, reason, said = of_verdict(verdict)
        metrics.VERDICTS.labels(word, reason, request.priority, price.length).inc()
        inputs: dict[str, Field] = {
            **evidence,
            "tenant": request.tenant,
            "model": request.model,
            "pool": price.pool,
            "template": request.template,
            "priority": request.priority.value,
            "length": price.length.value,
            "length_claim": request.length_claim.value,
            "prompt_tokens": request.prompt_tokens,
            "max_tokens": request.max_tokens,
            "choices": request.choices,
            "expected_output_tokens": price.expected_output_tokens,
            "coefficient": price.coefficient,
            "service_s": price.service_s,
            "kv_token_s": price.kv_token_s,
            "cost_units": price.cost_units,
            "arrived_s": request.arrived_s,
            "deadline_s": request.deadline_s,
            "deferrals": work.deferrals,
            "origin": request.origin.place,
            **said,
        }
        return self._entry(request.id, "admission", word, reason, inputs)

    def refusal(self, refusal: Refusal) -> Outgoing:
        """What never became priced work."""
        metrics.VERDICTS.labels("reject", refusal.reason, "", "").inc()
        inputs: dict[str, Field] = {
            **refusal.grounds,
            "detail": refusal.detail,
            "tenant": refusal.tenant,
            "model": refusal.model,
            "arrived_s": refusal.arrived_s,
            "origin": refusal.origin.place,
        }
        return self._entry(refusal.id, "verification", "reject", refusal.reason, inputs)

    def promotion(self, work: Work, inputs: Mapping[str, Field]) -> Outgoing:
        """A copy in the aged tier."""
        return self._entry(work.request.id, "promotion", "promote", WAITED, inputs)

    def settlement(self, usage: Usage, real_units: float, settled: Settled) -> Outgoing:
        """What an attempt cost, and what of its reservation was given back."""
        tokens = usage.tokens
        inputs: dict[str, Field] = {
            "tenant": usage.tenant,
            "model": usage.model,
            "pool": usage.pool,
            "template": usage.template,
            "priority": usage.priority.value,
            "length": usage.length.value,
            "attempt": usage.attempt,
            "partial": usage.partial,
            "reserved_units": usage.reserved_units,
            "real_units": round(real_units, 3),
            "refunded_units": settled.refunded_units,
            "prompt_tokens": tokens.prompt,
            "cached_tokens": tokens.cached,
            "output_tokens": tokens.output,
            "expected_prompt_tokens": usage.expected_prompt_tokens,
            "expected_output_tokens": usage.expected_output_tokens,
            "coefficient": usage.coefficient,
            "engine_s": usage.engine_s,
            "service_s": usage.service_s,
            "kv_token_s": usage.kv_token_s,
            "expected_kv_token_s": usage.expected_kv_token_s,
        }
        return self._entry(usage.id, "settlement", settled.result, usage.outcome, inputs)

    def control(self, order: Control) -> Outgoing:
        """An order that was followed; a change of limits with the budget that it led to."""
        bucket = limits.ordered(self._section, order) if order.action is ControlAction.LIMITS else None
        inputs: dict[str, Field] = {
            "name": order.name,
            "tenant": order.tenant,
            "ordered_by": order.by,
            "ordered_at_s": order.at_s,
            "refill_units_per_s": None if bucket is None else bucket.refill_units_per_s,
            "burst_s": None if bucket is None else bucket.burst_s,
        }
        return self._entry(order.id, "control", order.action.value, order.kind.value, inputs)

    def balances(self, balances: Balances) -> Outgoing:
        """The levels of the buckets that a batch touched."""
        return Outgoing(self._balances, self._by.encode(), codec.encode(balances))

    def _entry(self, identity: str, stage: str, verdict: str, reason: str, inputs: Mapping[str, Field]) -> Outgoing:
        decision = Decision(
            id=identity,
            stage=stage,
            verdict=verdict,
            reason=reason,
            at_s=self._clock.wall_s(),
            by=self._by,
            inputs={
                "policy_version": POLICY_VERSION,
                **{name: value for name, value in inputs.items() if value is not None},
            },
            settings_hash=self._hash,
            shadow=self._shadow,
        )
        return Outgoing(self._topic, identity.encode(), codec.encode(decision))
