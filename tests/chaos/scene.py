"""What the faults are done to: servers of our own, proxies before them, processes behind these, and the load."""

import contextlib
import json
import os
import signal
import time
import uuid
from pathlib import Path

from gpu_consumers.settings import Gpu
from streams.settings import StreamsSettings
from tests.chaos.fleet import Fleet, let_pass
from tests.chaos.load import POOR, STEADY, Answers, Load
from tests.support.proxy import Proxy, listeners
from tests.support.streams_worker import free_port, wait_until
from topics import admin, clients, local_broker
from topics.local_process import HOST
from topics.local_redis import LocalRedis
from topics.settings import load

CALM_S = 120.0
"""No request that is unanswered is answered for so long: then something is lost or stuck."""
FIRST_REQUESTS = 100
PATIENT_TRIES = 1000
"""Five minutes: on a crowded machine, with clients that wait for it, a broker takes its time to come back."""
WORKER_END_S = 30.0
SESSION_S = 8.0
"""After it the embedded broker has put a consumer out that says nothing."""
STREAMS = "RAMPMETER_STREAMS__"
LEASE_S, RENEW_S, DELIVERY_S, GRACE_S = 3.0, 1.0, 8.0, 5.0
WORKER_DELIVERY_S = 5.0
"""What a worker was just answering when it was killed is answered some seconds later, and if the next is killed then,
as late again: three in a row stay below the longest stall."""
HOLD_S = DELIVERY_S + 4.0
"""After it a claim whose answer was under way is free."""
GONE_S = max(SESSION_S, HOLD_S) + 4.0
"""Who says nothing for so long has no partition and no claim any more, and others have taken over."""


class Scene:
    """Everything runs between `__enter__` and `__exit__`.

    The processes reach the servers through the proxies, the tools of the suite reach them directly.
    """

    def __init__(self, folder, per_s, outage_s, say):
        self.folder, self.outage_s, self.say = Path(folder), outage_s, say
        self.complaints, self.memory_lost_s = [], []
        """What was wrong on the way; wall times at which Redis lost its memory."""
        self._per_s, self._held = per_s, contextlib.ExitStack()

    def __enter__(self):
        with self._held:
            self._start_servers()
            self._start_processes()
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *_):
        self._held.close()

    def _start_servers(self):
        local_broker.START_TRIES = PATIENT_TRIES
        ports = {name: free_port() for name in ("client", "controller", "every", "one", "redis")}
        self.kafka_net, self.one_kafka_net = (self._proxy(ports[name]) for name in ("every", "one"))
        self.redis_net, self.one_redis_net = (self._proxy(ports["redis"]) for _ in range(2))
        properties = listeners(ports, every=self.kafka_net.port, one=self.one_kafka_net.port)
        self.broker = local_broker.LocalBroker(self.folder / "kafka", port=ports["client"], properties=properties)
        self.redis = LocalRedis(self.folder / "redis", ports["redis"])
        for server in (self.broker, self.redis):
            self._held.enter_context(server)

    def _proxy(self, port):
        return self._held.enter_context(Proxy(port))

    def _start_processes(self):
        env = {**_environment(), "RAMPMETER_TOPICS__PREFIX": f"chaos-{uuid.uuid4().hex[:6]}."}
        self.settings = load(
            StreamsSettings,
            kafka={"bootstrap.servers": self.broker.bootstrap_servers},
            redis={"url": self.redis.url},
            topics={"prefix": env["RAMPMETER_TOPICS__PREFIX"]},
            streams={n.removeprefix(STREAMS).lower(): json.loads(v) for n, v in env.items() if n.startswith(STREAMS)},
        )
        admin.apply(self.settings)
        env |= _addresses(self.kafka_net, self.redis_net)
        ending_s = Gpu(grace_s=GRACE_S).termination_s
        self.workers = Fleet("streams", env, WORKER_END_S, self.folder, self.say)
        self.consumers = Fleet("gpu_consumers", env, ending_s, self.folder, self.say)
        self.fleets = (self.workers, self.consumers)
        for fleet in self.fleets:
            self._held.callback(fleet.close)
        self.load, self.answers = Load(self.settings, self._per_s), Answers(self.settings)
        self._held.callback(self.answers.close)

    def begin(self):
        """Start two of each and then the load; return when the log knows every tenant's budget."""
        for fleet in self.fleets:
            fleet.start(2)
        self.wait_ready()
        self.load.start()
        wait_until(lambda: len(self.load.landed) >= FIRST_REQUESTS, CALM_S)
        self.wait_calm("the start")

    def start_lone_consumer(self):
        """One more consumer, whose network is its own."""
        lone = self.consumers.start(**_addresses(self.one_kafka_net, self.one_redis_net))
        self.consumers.wait_ready()
        return lone

    def let_pass(self, seconds):
        """Let the load run on for that long."""
        let_pass(seconds, *self.fleets)

    def wait_ready(self):
        """Wait for every process."""
        for fleet in self.fleets:
            fleet.wait_ready()

    def wait_calm(self, after):
        """Wait until all are ready and everything that had landed is answered; complain when nothing more comes."""
        self.wait_ready()
        landed, fewest, end_s = set(self.load.landed), None, 0.0
        while missing := landed - self.answers.poll():
            if fewest is None or len(missing) < fewest:
                fewest, end_s = len(missing), time.monotonic() + CALM_S
            elif time.monotonic() > end_s:
                shown = [f"{self.load.landed[place]} at {place}" for place in sorted(missing)[:5]]
                self.complaints.append(f"{len(missing)} unanswered after {after}: {shown}")
                break
            self.let_pass(0.2)

    def kill_broker(self):
        """As a power cut does; `broker.start` brings it back."""
        os.kill(self.broker.pid, signal.SIGKILL)
        self.broker.stop()

    def kill_redis(self):
        """Its memory goes with it; `redis.start` brings it back empty."""
        os.kill(self.redis.pid, signal.SIGKILL)
        self.redis.stop()
        self.note_lost_memory()

    def flush_redis(self):
        """Everything in it is gone at once."""
        with contextlib.closing(clients.redis_sync(self.settings)) as client:
            client.flushall()
        self.note_lost_memory()

    def note_lost_memory(self):
        self.memory_lost_s.append(time.time())


def _addresses(kafka, redis):
    return {
        "RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": f"{HOST}:{kafka.port}",
        "RAMPMETER_REDIS__URL": f"redis://{HOST}:{redis.port}/0",
    }


def _environment():
    """Settings of the processes: budgets that do not refill, and times so short that a run sees their ends."""
    ample = {"refill_units_per_s": 1e9, "warm_up_s": 0}
    fixed = {"refill_units_per_s": 1e-6, "burst_s": 1e15, "warm_up_s": 0}
    poor = {"refill_units_per_s": 20.0, "burst_s": 2.0, "warm_up_s": 0}
    return {
        **{f"RAMPMETER_STREAMS__{level}_BUDGET": json.dumps(ample) for level in ("GLOBAL", "POOL", "TENANT")},
        "RAMPMETER_STREAMS__CLASS_BUDGETS": json.dumps(dict.fromkeys(("high", "medium", "low"), ample)),
        "RAMPMETER_STREAMS__TENANT_BUDGETS": json.dumps({**dict.fromkeys(STEADY, fixed), POOR: poor}),
        "RAMPMETER_STREAMS__SESSION_TIMEOUT_S": "4",
        "RAMPMETER_STREAMS__DELIVERY_S": str(WORKER_DELIVERY_S),
        "RAMPMETER_STREAMS__MAX_DEFERRAL_S": "12",
        # Work is in the engines when a consumer is killed, and is soon taken over.
        "RAMPMETER_GPU__ENGINE": "simulated",
        "RAMPMETER_GPU__SPEED": "2",
        "RAMPMETER_GPU__LEASE_S": str(LEASE_S),
        "RAMPMETER_GPU__RENEW_S": str(RENEW_S),
        "RAMPMETER_GPU__DELIVERY_S": str(DELIVERY_S),
        "RAMPMETER_GPU__GRACE_S": str(GRACE_S),
    }
