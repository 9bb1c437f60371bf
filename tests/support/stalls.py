"""How long partitions stand still: there is lag, and the group's committed offset does not move while it is stable."""

import contextlib
import threading
import time
import warnings
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from topics import admin, clients, tail

EVERY_S = 1.0
REBALANCING = ("PreparingRebalance", "CompletingRebalance")
TIMEOUT_S = 10.0


@dataclass(slots=True)
class Stalls:
    """What samples have shown so far.  `longest_s` is None before the first."""

    longest_s: float | None = None
    where: str = ""
    longest_in_all_s: float = 0.0
    """The same with the time in which the group was not stable."""
    _standing: dict = field(default_factory=dict)
    """Partitions with lag: the committed offset, since when it is that, the stable part of it, and the last sample."""

    def note(self, place, committed, end, now_s, *, is_stable=True):
        """Add one sample of one partition; a group that has committed nothing stands at 0."""
        committed, stable_s = max(0, committed), 0.0
        if end <= committed:
            self._standing.pop(place, None)
        else:
            offset, since_s, stable_s, before_s = self._standing.get(place, (None, now_s, 0.0, now_s))
            if offset != committed:
                since_s = before_s = now_s
                stable_s = 0.0
            stable_s += now_s - before_s if is_stable else 0.0
            self._standing[place] = committed, since_s, stable_s, now_s
            self.longest_in_all_s = max(self.longest_in_all_s, now_s - since_s)
        if self.longest_s is None or stable_s > self.longest_s:
            self.longest_s, self.where = stable_s, place

    def forget(self):
        """Every partition begins to stand anew with its next sample."""
        self._standing.clear()


class Watch:
    """Samples the committed offsets of groups in a thread; a context.  Never joins them."""

    def __init__(self, settings, topics_by_group):
        """Partitions by group, as the broker has them now."""
        self.stalls, self._over, self._excused = Stalls(), threading.Event(), threading.Event()
        counts = admin.partition_counts(settings)
        self._readers = [
            (group, clients.consumer(settings, group), [(topic, p) for topic in topics for p in range(counts[topic])])
            for group, topics in topics_by_group.items()
        ]
        self._admin = clients.admin(settings)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    @contextlib.contextmanager
    def excused(self):
        """Count no standstill meanwhile; when it is over, all clocks start at zero."""
        self._excused.set()
        yield
        self.stalls.forget()
        self._excused.clear()

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        for _, reader, _ in self._readers:
            reader.close()

    def _run(self):
        while not self._over.wait(EVERY_S):
            for group, reader, places in self._readers:
                try:
                    is_stable = self._is_stable(group)
                    committed = reader.committed([TopicPartition(*place) for place in places], timeout=TIMEOUT_S)
                    ends = tail.at_times(reader, [TopicPartition(*place, OFFSET_END) for place in places], TIMEOUT_S)
                except KafkaException:
                    continue  # what is not known now is known a second later; time goes on meanwhile
                if self._excused.is_set():
                    continue
                now_s, offsets = time.monotonic(), {(end.topic, end.partition): end.offset for end in ends}
                for done in (each for each in committed if each.error is None):
                    place = (done.topic, done.partition)
                    name = f"{place[0]}[{place[1]}]"
                    self.stalls.note(name, done.offset, offsets[place], now_s, is_stable=is_stable)

    def _is_stable(self, group):
        """Whether its members have what they are to have; of a group without rebalances for all (KIP-848) always.

        By the old call, since librdkafka 2.16's `describe_consumer_groups` can end the process when a broker is cut off
        (an assertion of its own).  Raises KafkaException.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = self._admin.list_groups(group, timeout=TIMEOUT_S)
        return all(one.state not in REBALANCING for one in found)
