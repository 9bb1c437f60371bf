"""Rows of a trace to priced requests, by the policies of admission."""

from collections.abc import Mapping, Sequence

from gpu_consumers.policy import batching
from rampmeter.simulation.jobs import Asked, flow_of
from rampmeter.workload import Row
from streams.policy import cost, length
from streams.settings import Streams
from topics.records import Length, Origin, Price, ReplyAddress, Request, Work
from topics.settings import Model

MODEL = "llama-3-8b"
ONE_TENANT = "default"
_NOWHERE = ReplyAddress(topic="replies")
_NO_ORIGIN = Origin(topic="requests", partition=0, offset=0)


class Pricing:
    """Prices and classifies requests in order of arrival, as `streams` does while nothing is learned."""

    def __init__(self, model: Model, section: Streams, declared_tokens: Mapping[str, int]) -> None:
        """`declared_tokens`: `max_tokens` of each service's requests, what their sender can know."""
        self._model, self._section, self._declared = model, section, declared_tokens
        self._recent = length.RecentCosts()

    def price(self, rows: Sequence[Row]) -> list[Asked]:
        """All rows, by arrival."""
        return [self._price(number, row) for number, row in enumerate(rows)]

    def _price(self, number: int, row: Row) -> Asked:
        model = self._model
        request = Request(
            id=str(number), tenant=row.tenant or ONE_TENANT, model=MODEL, priority=row.priority,
            length_claim=Length.SHORT, reply=_NOWHERE, origin=_NO_ORIGIN, arrived_s=row.arrival_s,
            prompt_tokens=row.input_tokens, max_tokens=self._declared[row.service],
        )  # fmt: skip
        expected = cost.expect(request, model, None, model.coefficient)
        price = Price(
            pool=model.pool,
            length=self._length(request, expected),
            expected_output_tokens=expected.output_tokens,
            cost_units=expected.units,
        )
        work = Work(request=request, price=price)
        return Asked(number, flow_of(work), work, batching.ask_of(work, model), row.output_tokens)

    def _length(self, request: Request, expected: cost.Expected) -> Length:
        section, recent = self._section, self._recent
        recent.add(expected.units)
        limits = length.Limits(
            section.long_max_tokens,
            recent.quantile_units(section.long_cost_quantile) or section.long_cost_units,
            section.history.long_service_s,
        )
        evidence = length.Evidence(request.max_tokens, expected.units, expected.service_s)
        return length.classify(section.length_mode, evidence, limits)
