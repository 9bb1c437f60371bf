"""What is done to the processes, their servers and the network: one function each, from the blow to the healing.

A function gets the scene and a source of chance.  After it everything runs again; what must hold is the oracle's.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.scene import GONE_S, HOLD_S, SESSION_S

DELAY_S, CUTS, CUT_EVERY_S = 0.2, 5, 1.0
SWALLOW_S = 10.0
LATE_S = (SESSION_S + HOLD_S) / 2
"""So late that others have the partitions and wait for the claims."""
QUEUE_S = 1.5
"""How long answers gather for a broker that is away, before their consumer is frozen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`is_outage`: a server or the network is away for all, so that a partition may stand still meanwhile."""

    strike: Callable
    is_outage: bool = False

    @property
    def name(self):
        return self.strike.__name__


def kill_consumer(scene, drawn):
    scene.consumers.kill(drawn.choice(scene.consumers.all))


def kill_worker(scene, drawn):
    scene.workers.kill(drawn.choice(scene.workers.all))


def freeze_consumer(scene, drawn):
    """Past its session and its claims: others take over, and then it goes on as if nothing were."""
    frozen = drawn.choice(scene.consumers.all)
    frozen.freeze()
    scene.let_pass(GONE_S)
    frozen.thaw()


def freeze_worker(scene, drawn):
    """The same for who admits and settles."""
    frozen = drawn.choice(scene.workers.all)
    frozen.freeze()
    scene.let_pass(GONE_S)
    frozen.thaw()


def freeze_consumer_with_unsent_answers(scene, drawn):
    """Its answers wait inside its client for a broker that is away; when it wakes, others have given them."""
    scene.kill_broker()
    scene.let_pass(QUEUE_S)
    frozen = drawn.choice(scene.consumers.all)
    frozen.freeze()
    scene.broker.start()
    scene.let_pass(GONE_S)
    frozen.thaw()


def roll_consumers(scene, _):
    scene.consumers.roll()


def roll_workers(scene, _):
    scene.workers.roll()


def scale_consumers(scene, _):
    """1, 4 and 1 again, each of them for a while under load."""
    before = len(scene.consumers.all)
    for size in (1, 4, 1, before):
        scene.consumers.resize(size)
        scene.let_pass(2.0)


def scale_workers(scene, _):
    before = len(scene.workers.all)
    for size in (1, 3, 1, before):
        scene.workers.resize(size)
        scene.let_pass(2.0)


def kill_broker(scene, _):
    scene.kill_broker()
    scene.let_pass(scene.outage_s)
    scene.broker.start()


def stop_broker(scene, _):
    scene.broker.stop()
    scene.let_pass(scene.outage_s)
    scene.broker.start()


def freeze_redis(scene, _):
    os.kill(scene.redis.pid, signal.SIGSTOP)
    scene.let_pass(scene.outage_s / 3)
    os.kill(scene.redis.pid, signal.SIGCONT)


def kill_redis(scene, _):
    scene.kill_redis()
    scene.let_pass(scene.outage_s / 3)
    scene.redis.start()


def flush_redis(scene, _):
    scene.flush_redis()
    scene.let_pass(3.0)


def slow_network(scene, _):
    for net in (scene.kafka_net, scene.redis_net):
        net.delay(DELAY_S)
    scene.let_pass(SWALLOW_S)
    for net in (scene.kafka_net, scene.redis_net):
        net.heal()


def cut_network(scene, drawn):
    for _ in range(CUTS):
        drawn.choice((scene.kafka_net, scene.redis_net)).cut()
        scene.let_pass(CUT_EVERY_S)


def swallow_kafka(scene, _):
    """Longer than sessions: all members are put out, and what they had sent arrives afterwards."""
    scene.kafka_net.swallow()
    scene.let_pass(SWALLOW_S)
    scene.kafka_net.heal()


def swallow_redis(scene, _):
    scene.redis_net.swallow()
    scene.let_pass(SWALLOW_S)
    scene.redis_net.heal()


def swallow_one(scene, _):
    """One consumer is alone, past its session; what it had sent arrives before its claims are free."""
    _leave_alone(scene, LATE_S)


def lose_one(scene, _):
    """One consumer is alone until others have taken over; what it had sent is lost with its connections."""
    _leave_alone(scene, GONE_S, end=lambda net: net.cut())


def _leave_alone(scene, for_s, end=lambda net: None):
    scene.start_lone_consumer()
    scene.let_pass(2.0)
    nets = scene.one_kafka_net, scene.one_redis_net
    for net in nets:
        net.swallow()
    scene.let_pass(for_s)
    for net in nets:
        end(net)
        net.heal()
    _send_home(scene)


def _send_home(scene):
    """Let the lone one live a while longer, then have as many as before."""
    scene.let_pass(5.0)
    lone = scene.consumers.all[-1]
    if len(scene.consumers.all) > 2:
        scene.consumers.end(lone)


KILLS = (Fault(kill_consumer), Fault(kill_worker))
OTHERS = (
    Fault(freeze_consumer),
    Fault(freeze_worker),
    Fault(freeze_consumer_with_unsent_answers, is_outage=True),
    Fault(roll_consumers),
    Fault(roll_workers),
    Fault(scale_consumers),
    Fault(scale_workers),
    Fault(kill_broker, is_outage=True),
    Fault(stop_broker, is_outage=True),
    Fault(freeze_redis, is_outage=True),
    Fault(kill_redis, is_outage=True),
    Fault(flush_redis),
    Fault(slow_network, is_outage=True),
    Fault(cut_network, is_outage=True),
    Fault(swallow_kafka, is_outage=True),
    Fault(swallow_redis, is_outage=True),
    Fault(swallow_one),
    Fault(lose_one),
)
