"""Load on streams workers and GPU consumers that are killed at random points, and what must hold when all is over."""

import asyncio
import json
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from rampmeter import audit
from streams.breaker import Breaker
from streams.budgets import Budgets
from streams.limits import LiveLimits
from streams.settings import StreamsSettings
from tests.support.stalls import Watch
from tests.support.streams_worker import StreamsWorker, TopicLog, chat, wait_until
from topics import catalog, clients, codec, keys
from topics.clock import SystemClock
from topics.records import Length, Reply, Tier
from topics.settings import load

FILLED_UNITS = 9e8
"""What the steady tenants have; it does not flow in again, so that what is missing in the end was charged."""
STEADY = ("acme", "globex")
POOR = "poor"
SPEND_WINDOW_S, SPEND_KEPT_S = 1, 4
CONSUMERS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done to the workers."""

    kills: int = 5
    consumer_ratio: float = 0.5
    """Part of the kills that meets a GPU consumer; the others meet a streams worker."""
    per_s: float = 60.0
    seed: int = 4
    settle_limit_s: float = 120.0


@dataclass(slots=True)
class Found:
    """What was seen from outside."""

    kills: int = 0
    sent: int = 0
    outcomes: dict = field(default_factory=dict)
    lost: int = 0
    duplicates: int = 0
    """By the audit, as are the faults in the charges."""
    faults: dict = field(default_factory=dict)
    reruns: int = 0
    max_stall_s: float | None = None
    """Longest time that a partition had lag and its committed offset stood; delay topics, which wait, aside."""
    max_stall_at: str = ""
    unanswered: int = 0
    answered_twice: dict = field(default_factory=dict)
    """What was answered, by id."""
    charged_twice: int = 0
    still_reserved: int = 0
    settled_units: dict = field(default_factory=dict)
    """By tenant, from the decision log, each charge once."""
    missing_units: dict = field(default_factory=dict)
    """By tenant, from its bucket."""
    tracebacks: int = 0


class Chaos:
    """One run on a site of the benchmarks; `log_dir` is for the workers."""

    def __init__(self, site, log_dir, say):
        self._site, self._log_dir, self._say = site, log_dir, say
        site.env |= environment()
        self._settings = load(
            StreamsSettings,
            kafka={"bootstrap.servers": site.env["RAMPMETER_KAFKA__BOOTSTRAP_SERVERS"]},
            redis={"url": site.env["RAMPMETER_REDIS__URL"]},
            topics={"prefix": site.settings.topics.prefix},
            streams={"tenant_budgets": json.loads(site.env["RAMPMETER_STREAMS__TENANT_BUDGETS"])},
        )
        self._workers, self._consumers, self._names = [], [], 0
        self._ids, self._places, self._over = [], set(), threading.Event()

    def run(self, plan):
        """Everything in turn; what was found."""
        found, begun_s = Found(), SystemClock().wall_s()
        asyncio.run(_fill(self._settings))
        try:
            self._start(2)
            self._feed(CONSUMERS)
            with Watch(self._settings, _groups(self._settings)) as stalls:
                self._torment(plan, found)
            found.max_stall_s = None if stalls.longest_s is None else round(stalls.longest_s, 1)
            found.max_stall_at = stalls.where
            self._judge(found)
            self._audit(found, begun_s)
        finally:
            self._over.set()
            for worker in self._workers:
                worker.kill()
        return found

    def _torment(self, plan, found):
        drawn = random.Random(plan.seed)
        load_thread = threading.Thread(target=self._load, args=(plan.per_s,), daemon=True)
        load_thread.start()
        for number in range(plan.kills):
            time.sleep(drawn.uniform(0, 2) if drawn.random() < 0.3 else drawn.uniform(2, 9))
            if drawn.random() < plan.consumer_ratio:
                self._consumers.pop(drawn.randrange(len(self._consumers))).kill()
                self._feed(1)
            else:
                self._kill(drawn.randrange(len(self._workers)))
            found.kills += 1
            self._say(f"kill {number + 1} of {plan.kills}, {len(self._ids)} sent")
        for count in (1, 3, 1):
            self._resize(count)
        self._over.set()
        load_thread.join()
        self._wait_answered(plan.settle_limit_s)

    def _start(self, count):
        for _ in range(count):
            self._names += 1
            log_path = self._log_dir / f"worker-{self._names}.log"
            self._workers.append(StreamsWorker(self._site.env, log_path).start(wait=False))

    def _feed(self, count):
        """Start GPU consumers; whoever follows a killed one is another."""
        for _ in range(count):
            self._names += 1
            self._consumers.append(self._site.start(f"gpu-{self._names}", "gpu_consumers"))

    def _kill(self, at):
        self._workers.pop(at).kill()
        self._start(1)

    def _resize(self, count):
        """Go to that many workers, and let the load run on with them."""
        self._wait_ready()
        while len(self._workers) > count:
            leaving = self._workers.pop()
            assert leaving.stop() == 0, leaving.log()[-4000:]
        self._start(count - len(self._workers))
        self._wait_ready()
        before = len(self._ids)
        self._say(f"{count} workers")
        wait_until(lambda: len(self._ids) > before + 100, 60)

    def _wait_ready(self):
        for worker in self._workers:
            wait_until(worker.is_ready, 90, worker.log)

    def _load(self, per_s):
        producer, landing = clients.producer(self._site.settings), self._site.landing()
        start_s, number = time.monotonic(), 0
        while not self._over.is_set():
            producer.poll(0)
            time.sleep(max(0.0, start_s + number / per_s - time.monotonic()))
            identity = f"c{number}-{uuid.uuid4().hex[:6]}"
            value, tenant = _record(number)
            headers = [("rampmeter_id", identity.encode())]
            topic = landing[number % len(landing)]
            producer.produce(topic, value, tenant.encode(), headers=headers, on_delivery=self._landed)
            self._ids.append(identity)
            number += 1
        assert producer.flush(60) == 0

    def _landed(self, error, message):
        assert error is None, error
        self._places.add((message.topic(), message.partition(), message.offset()))

    def _wait_answered(self, limit_s):
        replies = TopicLog(self._settings, catalog.default_reply_name(self._settings))
        try:
            wait_until(
                lambda: self._places <= {_place(m) for m in replies.poll()}, limit_s,
                lambda: f"unanswered: {sorted(self._places - {_place(m) for m in replies.messages})[:10]}",
            )  # fmt: skip
        except AssertionError as error:
            self._say(str(error))  # judged below, with all other figures
        finally:
            replies.close()
        usage = self._site.counter([self._settings.topic("usage")])
        done = self._site.committed("streams", "usage")
        wait_until(lambda: done() == usage(), limit_s, lambda: f"{done()} of {usage()} settled")

    def _judge(self, found):
        logs = {name: self._read(name) for name in ("usage", "decisions")}
        replies = [codec.decode_answer(m.value()) for m in self._read(catalog.default_reply_name(self._settings))]
        terminal = [reply for reply in replies if isinstance(reply, Reply) and not reply.repeat]
        answered = Counter(map(_origin, terminal))
        found.sent = len(self._ids)
        found.outcomes = dict(Counter(f"{reply.outcome}:{reply.reason}" for reply in terminal))
        found.unanswered = len(self._places - set(answered))
        for reply in terminal:
            if answered[_origin(reply)] > 1:
                found.answered_twice.setdefault(reply.id, []).append(f"{reply.outcome}:{reply.reason}")
        charged = Counter(d.id for d in map(_decision, logs["decisions"]) if _is_charge(d))
        found.charged_twice = sum(count > 1 for count in charged.values())
        settled = _settled_units(map(_decision, logs["decisions"]))
        named = keys.of(self._settings)
        with clients.redis_sync(self._settings) as redis:
            for tenant in STEADY:
                found.settled_units[tenant] = settled[tenant]
                found.missing_units[tenant] = FILLED_UNITS - float(redis.hget(named.bucket("tenant", tenant), "level"))
            open_ids = redis.zrange(named.expiries(), 0, -1)
            states = [redis.hget(named.reservation(i.decode()), "state") for i in open_ids]
            found.still_reserved = states.count(b"reserved")
        found.tracebacks = sum("Traceback" in path.read_text() for path in self._log_dir.glob("worker-*.log"))

    def _audit(self, found, begun_s):
        """What the log alone says: all was waited for, so nothing is pending."""
        report = audit.report(audit.read(self._settings, begun_s), SystemClock().wall_s(), 0.0)
        found.lost, found.duplicates, found.reruns = report.lost, report.duplicates, report.charges.reruns
        found.faults = {kind: count for kind, count in report.charges.wrong.items() if count}
        for one in report.charges.findings:
            self._say(f"{one.kind}: {one.id} at {one.topic}[{one.partition}]@{one.offset}: {one.detail}")

    def _read(self, name):
        log = TopicLog(self._settings, name)
        total = self._site.counter([self._settings.topic(name)])()
        try:
            return log.until(lambda messages: messages if len(messages) >= total else None, 60)
        finally:
            log.close()


def _groups(settings):
    """Groups whose commits must move, with what they read; a delay topic's head waits for its time."""
    landing = [spot.topic for spot in catalog.landings(settings)]
    lanes = [catalog.lane(settings, "default", tier, length) for tier in Tier for length in Length]
    return {
        catalog.group(settings, "streams"): [*landing, settings.topic("usage")],
        catalog.gpu_group(settings, "default"): lanes,
    }


def _origin(reply):
    return reply.origin.topic, reply.origin.partition, reply.origin.offset


def _place(message):
    """Which landing record a message of the reply topic answers; what cannot be read has no id of its own."""
    answer = codec.decode_answer(message.value())
    return _origin(answer) if isinstance(answer, Reply) and not answer.repeat else None


def environment():
    """Settings of the workers, as variables."""
    fixed = {"refill_units_per_s": 1e-6, "burst_s": 1e15, "warm_up_s": 0}
    poor = {"refill_units_per_s": 20.0, "burst_s": 2.0, "warm_up_s": 0}
    return {
        "RAMPMETER_STREAMS__TENANT_BUDGETS": json.dumps({**dict.fromkeys(STEADY, fixed), POOR: poor}),
        "RAMPMETER_STREAMS__SESSION_TIMEOUT_S": "4",
        "RAMPMETER_STREAMS__MAX_DEFERRAL_S": "12",
        # Work is in the engines when a consumer is killed, and is soon taken over.
        "RAMPMETER_GPU__ENGINE": "simulated",
        "RAMPMETER_GPU__SPEED": "2",
        "RAMPMETER_GPU__LEASE_S": "3",
        "RAMPMETER_GPU__RENEW_S": "1",
    }


def short_windows():
    """Settings under which every row of the table is gone soon."""
    history = {"window_s": SPEND_WINDOW_S, "kept_s": SPEND_KEPT_S}
    return {
        "RAMPMETER_STREAMS__SPEND_WINDOW_S": str(SPEND_WINDOW_S),
        "RAMPMETER_STREAMS__SPEND_KEPT_S": str(SPEND_KEPT_S),
        "RAMPMETER_STREAMS__HISTORY": json.dumps(history),
        "RAMPMETER_STREAMS__SESSION_TIMEOUT_S": "4",
    }


def rows_after_restarts(site, log_dir, restarts, per_restart=40):
    """Rows of the table when its windows have passed, after each restart; and how many there were in between."""
    site.env |= short_windows()
    site.start("gpu", "gpu_consumers").wait_ready()
    worker = StreamsWorker(site.env, log_dir / "worker.log").start()
    rows = "rampmeter_streams_spend_rows"
    usage = site.counter([site.settings.topic("usage")])
    done = site.committed("streams", "usage")
    before, after = [], []
    try:
        for restart in range(restarts):
            site.put(per_restart)
            wait_until(lambda sent=(restart + 1) * per_restart: usage() >= sent and done() == usage(), 60, worker.log)
            before.append(worker.metric(rows))
            worker.kill()
            worker = StreamsWorker(site.env, log_dir / "worker.log").start()
            wait_until(lambda worker=worker: worker.metric(rows) == 0.0, 60, lambda: str(worker.metric(rows)))  # noqa: B023
            after.append(worker.metric(rows))
    finally:
        worker.kill()
    return before, after


def _record(number):
    """One record's value and tenant: now and then refused, unreadable or from a tenant with little budget."""
    match number % 10:
        case 7:
            return chat(model="gpt-9"), STEADY[0]
        case 8:
            return b"\xff", STEADY[0]
        case 9:
            return chat(max_tokens=100), POOR
        case kind:
            return chat(max_tokens=8 + kind), STEADY[number % len(STEADY)]


def _decision(message):
    return codec.decode_decision(message.value())


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


def _is_charge(decision):
    return decision.stage == "settlement" and decision.verdict in {"settled", "unknown"}


async def _fill(settings):
    clock = SystemClock()
    client = clients.redis_async(settings)
    budgets = Budgets(client, settings, Breaker(clock, settings.streams.degrade), LiveLimits(settings.streams))
    await budgets.restore({f"tenant:{tenant}": (FILLED_UNITS, clock.wall_s()) for tenant in STEADY})
    await client.aclose()
