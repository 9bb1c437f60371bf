"""What the log says of each id, collected record by record in any order, and told as timelines.  Keeps no body."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from rampmeter.accounts import Place, place
from rampmeter.explain import telling
from rampmeter.explain.companions import Engines, Run
from rampmeter.explain.events import ORDER, Event, Price, Step, Timeline
from rampmeter.positions import shown
from topics.records import DeadLetter, Decision, Reply, Usage, Work, no_body
from topics.settings import Model

_FLOATING = 1e-3
OPEN = "open"
KEPT_COMPANIONS = 20
_OF_AN_ENGINE = {
    Step.ADMITTED: "its admission",
    Step.PLACED: "its record on a lane",
    Step.ENDED: "the usage of the attempt that answered",
    Step.SETTLED: "its settlement: streams may still be reading its usage",
}
"""What the log must hold of a request that a consumer answered."""
_WHAT = ("tenant", "model", "priority", "length", "pool")


@dataclass(frozen=True, slots=True)
class Landing:
    """A record as it landed."""

    at_s: float
    size_bytes: int
    names: tuple[str, ...]
    """The ids that it may go by: first the one that it claims, if it does, then that of its place."""
    replay_of: str | None = None


@dataclass(slots=True)
class Story:
    """What is known of one id.  A step that was told twice is kept once."""

    events: dict[tuple[Step, float, str], Event] = field(default_factory=dict)
    origins: dict[Place, None] = field(default_factory=dict)
    """Landing records that are surely its own, in the order in which they were met."""
    claimed: dict[Place, None] = field(default_factory=dict)
    """Landing records that say to be."""
    price: tuple[float, Price] | None = None
    reply: tuple[float, Reply] | None = None
    """The first terminal one, its body dropped."""
    answered: set[Place] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> None:
        """Take in steps."""
        for event in events:
            self.events.setdefault((event.step, event.at_s, event.what), event)

    def know(self, values: Mapping[str, object]) -> None:
        """Take in what the request is; what was said last counts, since admission corrects claims."""
        self.known |= {name: str(values[name]) for name in _WHAT if values.get(name) is not None}

    def has(self, step: Step) -> bool:
        """Whether such a step was told."""
        return any(kind is step for kind, _, _ in self.events)

    @property
    def is_known(self) -> bool:
        """Whether the log holds anything of it beside records that merely claim its id."""
        return bool(self.events)


class Stories:
    """All ids.  Invariant: memory grows with ids and their steps, never with bodies."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        """`models` split prices into their parts."""
        self._models = models
        self._by_id: defaultdict[str, Story] = defaultdict(Story)
        self._landings: dict[Place, Landing] = {}
        self._engines = Engines()

    def land(self, where: Place, landing: Landing) -> None:
        """Note a landing record."""
        self._landings[where] = landing
        for name in landing.names:
            self._by_id[name].claimed[where] = None

    def decision(self, decision: Decision, record: str) -> None:
        """Note a decision; those of a shadow befell nobody."""
        is_order = decision.stage == "control" and decision.reason == "request"
        if decision.shadow is not None or decision.stage == "scale":
            return
        if decision.stage == "control" and not is_order and decision.verdict != "cancel":
            return
        story = self._by_id[str(decision.inputs.get("name")) if is_order else decision.id]
        story.add(telling.of_decision(decision, record))
        if decision.stage in ("admission", "verification"):
            story.know(decision.inputs)
        price = telling.price_in(decision, self._models)
        if price is not None and (story.price is None or decision.at_s < story.price[0]):
            story.price = (decision.at_s, price)

    def work(self, work: Work, family: str, topic: str, record: str, at_s: float) -> None:
        """Note work on a lane, or on its way back to one."""
        request, story = work.request, self._by_id[work.request.id]
        story.add([telling.of_work(work, family, topic, record, at_s)])
        story.origins[place(request.origin)] = None
        story.know({"tenant": request.tenant, "model": request.model, "priority": request.priority.value,
                    "length": work.price.length.value, "pool": work.price.pool})  # fmt: skip

    def reply(self, reply: Reply, record: str, at_s: float) -> None:
        """Note a terminal reply."""
        story = self._by_id[reply.id]
        story.add(telling.of_reply(reply, record, at_s))
        if reply.origin is not None:
            story.origins[place(reply.origin)] = None
            story.answered.add(place(reply.origin))
        if not reply.repeat and (story.reply is None or at_s < story.reply[0]):
            story.reply = (at_s, msgspec.structs.replace(reply, body=no_body()))
            story.know({name: getattr(reply, name) for name in _WHAT})

    def usage(self, usage: Usage, record: str, *, of_interest: bool = True) -> None:
        """Note what an attempt used; of others only that they were in the engine."""
        run = None
        if usage.service_s is not None:
            run = Run(usage.id, usage.consumer, usage.finished_s - usage.service_s, usage.finished_s)
            self._engines.note(run)
        if of_interest:
            story = self._by_id[usage.id]
            story.add(telling.of_usage(usage, record))
            if run is not None and run not in story.runs:
                story.runs.append(run)

    def letter(self, letter: DeadLetter, number: int, record: str) -> None:
        """Note a dead letter, under its id and under those of the record that it is about."""
        landing = self._landings.get((letter.topic, letter.partition, letter.offset))
        names = landing.names if letter.id is None and landing is not None else (letter.id,)
        for name in names:
            if name is not None:
                self._by_id[name].add([telling.of_letter(letter, number, record)])

    def ids(self) -> list[str]:
        """Every id of which something is known; a record counts under the id that it claims."""
        claimed = {landing.names[0] for landing in self._landings.values()}
        return [name for name, story in self._by_id.items() if story.is_known or name in claimed]

    def timelines(self) -> Iterator[Timeline]:
        """The timeline of every id."""
        for name in self.ids():
            found = self.timeline(name)
            if found is not None:
                yield found

    def timeline(self, name: str) -> Timeline | None:
        """All that the log says of one id; None when it says nothing."""
        story = self._by_id.get(name)
        if story is None:
            return None
        places = list(story.origins) or list(story.claimed)
        told = [*self._received(places), *story.events.values()]
        if not told:
            return None
        reply = None if story.reply is None else story.reply[1]
        beside = [one for run in story.runs for one in self._engines.beside(run)]
        return Timeline(
            id=name,
            state=OPEN if reply is None else reply.outcome.value,
            reason=None if reply is None or reply.reason == "none" else reply.reason.value,
            events=in_order(told),
            tenant=story.known.get("tenant"),
            model=story.known.get("model"),
            priority=story.known.get("priority"),
            length=story.known.get("length"),
            pool=story.known.get("pool"),
            attempts=len(story.runs),
            cost_units=None if reply is None else reply.cost_units,
            price=None if story.price is None else story.price[1],
            waits=None if reply is None else reply.waits,
            batched_with=beside[:KEPT_COMPANIONS],
            batched=len({one.id for one in beside}),
            missing=list(self._missing(name, story, reply, places)),
        )

    def _received(self, places: Iterable[Place]) -> Iterator[Event]:
        for where in places:
            landing = self._landings.get(where)
            if landing is not None:
                again = "" if landing.replay_of is None else f", sent again for dead letter {landing.replay_of}"
                facts: dict[str, float | int | str | bool | None] = {"size_bytes": landing.size_bytes}
                yield Event(
                    landing.at_s, Step.RECEIVED, f"landed on {where[0]}{again}", record=shown(*where), facts=facts
                )

    def _missing(self, name: str, story: Story, reply: Reply | None, places: Iterable[Place]) -> Iterator[str]:
        landed = [where for where in places if where in self._landings]
        if not landed:
            yield "the record that asked: it has expired, or lies before --since"
        if reply is None:
            other = None if story.is_known or not landed else self._landings[landed[0]].names[0]
            if other is not None and other != name:
                yield f"anything under this id: the record goes by {other}"
            return
        open_places = [where for where in landed if where not in story.answered]
        if open_places:
            yield f"an answer to {shown(*open_places[0])}, which asked under the same id"
        if reply.tokens is not None:
            yield from (what for step, what in _OF_AN_ENGINE.items() if not story.has(step))
        elif not any(story.has(step) for step in (Step.REFUSED, Step.REJECTED)):
            yield "the decision to reject it: its worker ended between the answer and the entry"


def in_order(told: Iterable[Event]) -> list[Event]:
    """The steps in their order, each with the time since the one before; equal ones in a row are one."""
    found: list[Event] = []
    for event in sorted(told, key=lambda event: (_moment(event.at_s), ORDER[event.step])):
        last = found[-1] if found else None
        if last is not None and event.step is last.step and event.what == last.what and event.by == last.by:
            found[-1] = msgspec.structs.replace(last, times=last.times + 1)
            continue
        since_s = None if last is None else round(max(0.0, event.at_s - last.at_s), 6)
        found.append(msgspec.structs.replace(event, after_s=since_s))
    return found


def _moment(at_s: float) -> int:
    """The millisecond: Kafka knows the times of records no better, so within one the order of the steps counts."""
    return math.floor(at_s * 1000 + _FLOATING)
