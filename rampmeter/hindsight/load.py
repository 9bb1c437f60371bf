"""The requests of a pool as the log tells them: when they came, what they asked for and needed, how they ended."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rampmeter import reading
from rampmeter.hindsight import redecide
from rampmeter.hindsight.figures import End
from rampmeter.hindsight.redecide import Books
from streams.policy import evidence
from streams.settings import StreamsSettings
from topics.errors import PipelineError
from topics.notes import Estimate
from topics.records import Decision, Length, Reply, Request, Tokens

_CHARGES = ("settled", "unknown", "partial")


class Empty(PipelineError):
    """The log holds nothing to begin with."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request and its end."""

    request: Request
    known: Estimate
    coefficient: float
    """Of its model, when it was priced."""
    expected_output_tokens: int
    tokens: Tokens | None
    """What it used; None of what never ran."""
    end: End

    @property
    def ran(self) -> Tokens | None:
        """The same of what began to answer; only then it says how long the answer is."""
        return self.tokens if self.tokens is not None and self.tokens.output > 0 else None


@dataclass(slots=True)
class Load:
    """All requests that came and ended, by arrival."""

    requests: list[Told]
    open: int
    """Came and have no answer yet: left out."""
    replicas: int
    """Consumers that answered."""
    other_settings: int
    """Decided under other settings than those of the command."""
    is_scaled: bool = False
    """An autoscaler changed their number."""
    unpriced: int = 0
    """Of models that the settings do not have: left out too."""


@dataclass(slots=True)
class Log:
    """What the topics say of a pool's requests, in the order in which they are read.  One reader."""

    pool: str
    since_s: float
    admitted: dict[str, Decision] = field(default_factory=dict)
    """The first entry of each id."""
    used: dict[str, Tokens] = field(default_factory=dict)
    units: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    replies: dict[str, Reply] = field(default_factory=dict)
    consumers: set[str] = field(default_factory=set)
    is_scaled: bool = False
    charged: defaultdict[str, set[object]] = field(default_factory=lambda: defaultdict(set))

    def decision(self, decision: Decision) -> None:
        """Note the first entry of a request, and what its attempts were charged."""
        inputs = decision.inputs
        if decision.shadow is not None:
            return
        if decision.stage == "scale" and decision.id == self.pool:
            self.is_scaled |= decision.verdict != "hold"
        if inputs.get("pool") != self.pool:
            return
        if decision.stage == "admission" and "seen_s" in inputs and "long_units" in inputs:
            if float(inputs["arrived_s"] or 0.0) >= self.since_s:
                self.admitted.setdefault(decision.id, decision)
        elif decision.stage == "settlement" and decision.verdict in _CHARGES:
            self._settlement(decision)

    def reply(self, reply: Reply) -> None:
        """Note how a request ended."""
        if not reply.repeat and reply.id in self.admitted and reply.id not in self.replies:
            self.replies[reply.id] = reply
            if reply.consumer:
                self.consumers.add(reply.consumer)

    def load(self, settings: StreamsSettings) -> Load:
        """What was noted."""
        ended = [decision for name, decision in self.admitted.items() if name in self.replies]
        told = [self._told(decision) for decision in ended if decision.inputs["model"] in settings.models]
        settings_hash = settings.short_hash()
        return Load(
            requests=sorted(told, key=lambda one: one.request.arrived_s),
            open=len(self.admitted) - len(ended),
            unpriced=len(ended) - len(told),
            replicas=len(self.consumers),
            other_settings=sum(decision.settings_hash != settings_hash for decision in self.admitted.values()),
            is_scaled=self.is_scaled,
        )

    def _settlement(self, decision: Decision) -> None:
        inputs = decision.inputs
        place = inputs["attempt"], inputs["partial"]
        if place in self.charged[decision.id]:  # an entry that was sent twice
            return
        self.charged[decision.id].add(place)
        self.units[decision.id] += float(inputs["real_units"] or 0.0)
        prompt, output, cached = (int(inputs[f"{name}_tokens"] or 0) for name in ("prompt", "output", "cached"))
        self.used[decision.id] = Tokens(prompt=prompt, output=output, cached=cached)

    def _told(self, decision: Decision) -> Told:
        request, reply, inputs = redecide.request_of(decision), self.replies[decision.id], decision.inputs
        timing, begun_s = reply.timing, request.arrived_s

        def after(at_s: float | None) -> float | None:
            return None if at_s is None else max(0.0, at_s - begun_s)

        end = End(
            tenant=request.tenant,
            priority=request.priority,
            length=reply.length or Length(str(inputs["length"])),
            outcome=reply.outcome,
            wait_s=after(timing.started_s if timing else None),
            ttft_s=after(timing.first_token_s if timing else None),
            e2e_s=after(timing.finished_s if timing else None),
            cost_units=self.units[decision.id],
        )
        return Told(
            request=request,
            known=evidence.known_given(inputs),
            coefficient=float(inputs["coefficient"] or 1.0),
            expected_output_tokens=int(inputs["expected_output_tokens"] or 1),
            tokens=self.used.get(decision.id),
            end=end,
        )


def read(books: Books, pool: str, since_s: float, decisions: Iterable[Decision]) -> Load:
    """Read the replies to what these decisions tell of; raises Empty when there is no request that ended."""
    log = Log(pool, since_s)
    for decision in decisions:
        log.decision(decision)
    if log.admitted:
        for _, reply in reading.replies(books.streams, since_s - reading.SKEW_S):
            log.reply(reply)
    found = log.load(books.streams)
    if not found.requests:
        raise Empty(f"the log has no request of the pool {pool} that ended; see --since and --pool")
    return found
