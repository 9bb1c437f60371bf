"""The poll thread against a log, a group and a loop that do whatever they may, in any order."""

from itertools import count

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from gpu_consumers import poller
from gpu_consumers.assignment import Done, Release
from gpu_consumers.mailbox import Mailbox
from gpu_consumers.metrics import Metrics
from gpu_consumers.policy.selection import Lane
from gpu_consumers.settings import Gpu
from tests.support.clock import FakeClock
from topics import offset_map
from topics.records import Length, Tier

LANE = "lanes.default.medium.short"
PLACE = [TopicPartition(LANE, 0)]
MAP_BYTES = 24  # a run or two, so that many positions do not fit
GAPS = st.lists(st.integers(0, 300), min_size=1, max_size=9)


class Message:
    def __init__(self, offset, number):
        self.number, self.offset = number, lambda: offset

    def error(self):
        return None

    def topic(self):
        return LANE

    def partition(self):
        return 0

    def value(self):
        return b"%d" % self.number

    def key(self):
        return b"k"

    def timestamp(self):
        return 1, 1_700_000_000_000


class Broker:
    """One partition and one group's commit.  Records are told apart by number, since a new log uses offsets again."""

    def __init__(self):
        self.log, self.end, self.commit = {}, 0, None

    def append(self, gap, number):
        self.log[self.end + gap] = number
        self.end += gap + 1


class Client:
    def __init__(self, broker, on_commit):
        self._broker, self._on_commit = broker, on_commit
        self.position, self.is_paused = 0, False
        self.is_refused = False

    def subscribe(self, _topics, **_callbacks):
        """The machine gives and takes the partition itself."""

    def poll(self, _timeout):
        return next(iter(self.consume(1, 0)), None)

    def consume(self, count, timeout):
        log = self._broker.log
        if self.position > self._broker.end:
            self.position = min(log, default=0)
        taken = [] if self.is_paused else sorted(o for o in log if o >= self.position)[:count]
        self.position = taken[-1] + 1 if taken else self.position
        return [Message(offset, log[offset]) for offset in taken]

    def pause(self, _):
        self.is_paused = True

    def resume(self, _):
        self.is_paused = False

    def committed(self, _partitions, timeout):
        return [self._broker.commit or TopicPartition(LANE, 0, -1001)]

    def incremental_assign(self, partitions):
        self.position = max(0, partitions[0].offset)

    def incremental_unassign(self, _):
        pass

    def commit(self, offsets, asynchronous):
        error = KafkaError(KafkaError.STALE_MEMBER_EPOCH) if self.is_refused else None
        if error is None:
            self._broker.commit = offsets[0]
        if asynchronous:
            self._on_commit(error, offsets)
        elif error:
            raise KafkaException(error)
        return offsets


class Delivery(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock, self.broker, self.numbers = FakeClock(), Broker(), count()
        self.finished = set()
        self._start()

    def _start(self):
        self.inbox, self.inflight, made = Mailbox(lambda: None), [], []

        def make(on_commit):
            made.append(Client(self.broker, on_commit))
            return made[0]

        lane = Lane(Tier.MEDIUM, Length.SHORT)
        links = poller.Links(make, {LANE: lane}, (lane,), self.inbox)
        gpu = Gpu(poll_records=3, buffer_records=4, window_records=12)
        gpu = gpu.model_copy(update={"commit_map_bytes": MAP_BYTES})
        self.poller = poller.Poller(gpu, links, self.clock, Metrics(CollectorRegistry()))
        (self.client,) = made
        self.poller._on_assign(self.client, PLACE)

    def _append(self, gaps):
        for gap in gaps:
            self.broker.append(gap, next(self.numbers))

    def _turn(self, is_refused=False):
        self.client.is_refused = is_refused
        self.clock.advance(1.0)
        self.poller._turn()
        for item in self.inbox.take():
            if not isinstance(item, Release):
                self.inflight += item
                for fetched in item:
                    fetched.assignment.take(fetched)

    def _finish(self, fetched):
        self.inflight.remove(fetched)
        self.finished.add(int(fetched.value))
        self.poller.done.put(Done(fetched.assignment, fetched.offset))

    @rule(gaps=GAPS)
    def records_are_appended(self, gaps):
        self._append(gaps)

    @rule(is_refused=st.booleans())
    def a_turn(self, is_refused):
        self._turn(is_refused)

    @precondition(lambda self: self.inflight)
    @rule(data=st.data())
    def some_finish(self, data):
        for fetched in data.draw(st.lists(st.sampled_from(self.inflight), unique_by=id, min_size=1)):
            self._finish(fetched)

    @rule(how=st.sampled_from(["_on_revoke", "_on_lost"]), is_refused=st.booleans())
    def the_partition_goes_and_comes_back_while_its_work_runs_on(self, how, is_refused):
        self.client.is_refused = is_refused
        for assignment in self.poller.owned():
            assignment.idle.set()
        getattr(self.poller, how)(self.client, PLACE)
        self.poller._on_assign(self.client, PLACE)

    @rule()
    def the_process_dies(self):
        self._start()

    @precondition(lambda self: not self.client.is_paused and any(not one.assignment.closed for one in self.inflight))
    @rule(gaps=GAPS)
    def the_log_is_made_anew_and_that_is_seen(self, gaps):
        self.broker.__init__()
        self._append([0, *gaps])
        self.client.position = 0
        self._turn()

    @invariant()
    def nothing_that_counts_as_finished_is_unfinished(self):
        commit = self.broker.commit
        if commit is None:
            return
        assert len(commit.metadata) <= MAP_BYTES
        runs = offset_map.decode(commit.offset, commit.metadata)
        counted = [
            number
            for offset, number in self.broker.log.items()
            if offset < commit.offset or any(first <= offset <= last for first, last in runs)
        ]
        assert set(counted) <= self.finished

    def teardown(self):
        """Whatever happened, the rest is handed over, finished and committed."""
        for _ in range(len(self.broker.log) + 20):
            self._turn()
            for fetched in list(self.inflight):
                self._finish(fetched)
        self._turn()
        assert set(self.broker.log.values()) <= self.finished
        if self.broker.log:
            assert self.broker.commit.offset == self.broker.end


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=60, stateful_step_count=40)
