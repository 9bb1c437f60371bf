"""What must hold when all is over: `rampmeter audit` from the log, budgets beside settlements, leftovers."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from autoscaler.settings import AutoscalerSettings
from rampmeter import audit, reading
from rampmeter.explain import gathering
from rampmeter.explain.events import Step
from rampmeter.hindsight import replay
from rampmeter.hindsight.redecide import Books
from tests.chaos.load import STEADY
from tests.support.streams_worker import wait_until
from topics import admin, catalog, clients, codec, keys
from topics.records import Length, Tier

FILLED_UNITS = 9e8
"""What the steady tenants have; it does not flow in again, so that what is missing in the end was charged."""
UNITS_OFF = 0.01
STALL_AT_MOST_S = 30.0


@dataclass(slots=True)
class Found:
    """What was seen from outside; `wrong` says in words what must not be."""

    seed: int = 0
    faults: dict = field(default_factory=dict)
    """How often each was done."""
    kills: int = 0
    sent: int = 0
    lost: int = 0
    duplicates: int = 0
    max_stall_s: float | None = None
    """Longest time that a partition had lag and its committed offset stood while its group was stable, outages of a
    server or the network aside; delay topics, which wait, are not looked at."""
    max_standstill_s: float = 0.0
    """The same whatever its group did: a kill while it still recovers from the last makes it longer."""
    max_stall_at: str = ""
    charges: dict = field(default_factory=dict)
    """Faults by kind, by the audit."""
    reruns: int = 0
    outcomes: dict = field(default_factory=dict)
    settled_units: dict = field(default_factory=dict)
    """By tenant, from the decision log, each charge once."""
    missing_units: dict = field(default_factory=dict)
    """By tenant, from its bucket."""
    open_units: dict = field(default_factory=dict)
    """By tenant: what was reserved and not settled whenever Redis lost its memory, and so may be missing as well."""
    still_reserved: int = 0
    ended: dict = field(default_factory=dict)
    """Processes that ended by themselves and were started again, by status."""
    tracebacks: int = 0
    decided_otherwise: int = 0
    """Logged decisions that come out otherwise when they are made again."""
    explained: int = 0
    """Ids whose timeline lacks nothing."""
    unexplained: int = 0
    """Ids of which the log lacks a step, or the end."""
    wrong: list = field(default_factory=list)


def watched(settings):
    """Groups whose commits must move, with what they read; a delay topic's head waits for its time."""
    landing = [spot.topic for spot in catalog.landings(settings)]
    lanes = [catalog.lane(settings, "default", tier, length) for tier in Tier for length in Length]
    return {
        catalog.group(settings, "streams"): [*landing, settings.topic("usage")],
        catalog.gpu_group(settings, "default"): lanes,
    }


def wait_settled(settings, limit_s):
    """Wait until streams has read all usage; what is wrong when it does not."""
    topic = settings.topic("usage")
    spots = [clients.at(topic, partition, 0) for partition in range(admin.partition_counts(settings)[topic])]
    reader = clients.consumer(settings, catalog.group(settings, "streams"))

    def is_settled():
        committed = sum(max(0, done.offset) for done in reader.committed(spots, timeout=10))
        return committed == sum(reader.get_watermark_offsets(spot, timeout=10)[1] for spot in spots)

    try:
        wait_until(is_settled, limit_s)
    except AssertionError:
        return [f"usage is not settled after {limit_s:g} s"]
    finally:
        reader.close()
    return []


def judge(found, scene, begun_s, now_s):
    """Fill `found` from the topics and Redis."""
    settings = scene.settings
    report = audit.report(audit.read(settings, begun_s), now_s, 0.0)
    found.sent, found.lost, found.duplicates = report.sent, report.lost, report.duplicates
    found.outcomes, found.reruns = report.outcomes, report.charges.reruns
    for one in report.charges.findings[:50]:
        scene.say(f"{one.kind}: {one.id} at {one.topic}[{one.partition}]@{one.offset}: {one.detail}")
    for where in (*report.lost_records, *report.doubled_records):
        scene.say(f"lost or doubled: {where}")
    books = Books(settings, AutoscalerSettings())
    replayed = replay.run(books, books, begun_s)
    found.decided_otherwise = replayed.differ
    scene.say(f"decisions made again: {replayed.by_stage}, carried out again: {replayed.recorded}")
    if replayed.other_settings:
        scene.complaints.append(f"{replayed.other_settings} decisions were made under other settings")
    for one in replayed.differences[:50]:
        scene.say(
            f"decided otherwise: {one.id} ({one.stage}) at {one.topic}[{one.partition}]@{one.offset}: {one.fields}"
        )
    for told in gathering.gather(settings, begun_s).timelines():
        if _times(told, Step.ANSWERED) > _times(told, Step.RECEIVED):
            scene.say(f"answered twice: {told.id}: " + "; ".join(map(_line, told.events)))
        if told.missing or told.state == "open":
            found.unexplained += 1
            scene.say(f"not explained: {told.id}, {told.state}: {told.missing}, {[e.step.value for e in told.events]}")
        else:
            found.explained += 1
    told = reading.since(settings, [settings.topic("decisions")], begun_s)
    decisions = [codec.decode_decision(message.value()) for message in told]
    forgotten = _open_at(decisions, scene.memory_lost_s)
    settled, still_open = _settled_units(decisions), Counter()
    for decision in forgotten.values():
        still_open[decision.inputs["tenant"]] += decision.inputs["cost_units"]
    found.charges = {str(kind): count for kind, count in report.charges.wrong.items() if count}
    named = keys.of(settings)
    with clients.redis_sync(settings) as redis:
        for tenant in STEADY:
            level = float(redis.hget(named.bucket("tenant", tenant), "level"))
            found.missing_units[tenant] = round(FILLED_UNITS - level, 3)
            found.settled_units[tenant] = round(settled[tenant], 3)
            found.open_units[tenant] = round(still_open[tenant], 3)
        ids = redis.zrange(named.expiries(), 0, -1)
        found.still_reserved = [redis.hget(named.reservation(i.decode()), "state") for i in ids].count(b"reserved")
    found.tracebacks = sum("Traceback" in log.read_text("utf-8", "replace") for log in scene.folder.glob("*-*.log"))
    found.wrong = [*_wrong(found, len(scene.load.landed)), *scene.complaints]


def _times(told, step):
    return sum(event.times for event in told.events if event.step is step)


def _line(event):
    return f"{event.at_s:.3f} {event.step} {event.what} by {event.by} at {event.record} {event.facts} x{event.times}"


def _wrong(found, landed):
    zeros = ("lost", "duplicates", "charges", "still_reserved", "tracebacks", "decided_otherwise", "unexplained")
    wrong = [f"{name}: {getattr(found, name)}" for name in zeros if getattr(found, name)]
    if found.sent < landed:
        wrong.append(f"the broker took {landed} records and has {found.sent}")
    if found.max_stall_s is None or found.max_stall_s > STALL_AT_MOST_S:
        wrong.append(f"stall: {found.max_stall_s} s at {found.max_stall_at}, at most {STALL_AT_MOST_S:g} s are right")
    for tenant, missing in found.missing_units.items():
        settled, still_open = found.settled_units[tenant], found.open_units[tenant]
        if not settled - still_open - UNITS_OFF <= missing <= settled + still_open + UNITS_OFF:
            wrong.append(f"{tenant}: {missing} units are missing, {settled} were settled, {still_open} may be either")
    return wrong


def _settled_units(decisions):
    """By tenant.  A charge whose note died with its worker is in the log as a repeat only."""
    charges = {}
    for decision in decisions:
        if decision.stage == "settlement":
            place = decision.id, decision.inputs["partial"] and decision.inputs["attempt"]
            if decision.verdict != "repeat" or place not in charges:
                charges[place] = decision
    settled = defaultdict(float)
    for decision in charges.values():
        settled[decision.inputs["tenant"]] += decision.inputs["real_units"]
    return settled


def _open_at(decisions, moments_s, around_s=5.0):
    """Admissions by id, of those that were open at one of these moments, or close to it."""
    admitted, ended = {}, {}
    for decision in decisions:
        if decision.stage == "admission" and decision.verdict == "admit":
            admitted.setdefault(decision.id, decision)
        elif decision.stage == "settlement" and not decision.inputs["partial"]:
            ended.setdefault(decision.id, decision.at_s)
    return {
        request_id: decision
        for request_id, decision in admitted.items()
        if any(
            decision.at_s - around_s <= moment_s <= ended.get(request_id, moment_s) + around_s for moment_s in moments_s
        )
    }
