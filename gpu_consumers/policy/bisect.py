"""Bisecting: which of those that failed together is the cause?  Pure.

Suspects run in groups, one group at a time.  A group of which several fail is halved, who ends leaves it, and only who
fails alone is the cause: one among n is found after 1 + log2(n) failures, however the others lie.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

Group = frozenset[str]
_NOBODY: Group = frozenset()


@dataclass(frozen=True, slots=True)
class Trials:
    """Who is suspected.  Invariant: an id is in at most one group; the first group is the one that runs."""

    groups: tuple[Group, ...] = ()
    spared: Group = _NOBODY
    """Failed once beside suspects, and was not suspected for that."""

    @property
    def suspects(self) -> Group:
        """All in any group."""
        return _NOBODY.union(*self.groups)

    @property
    def running(self) -> Group:
        """Those who may run."""
        return self.groups[0] if self.groups else _NOBODY

    def accuse(self, request_id: str) -> "Trials":
        """Have this one tried by itself, unless it is suspected already."""
        return self if request_id in self.suspects else replace(self, groups=(*self.groups, frozenset({request_id})))

    def keep(self, present: Collection[str]) -> "Trials":
        """Let those go who are here no more: they ended, or their partition left."""
        groups = tuple(left for group in self.groups if (left := group.intersection(present)))
        return Trials(groups, self.spared if groups else _NOBODY)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a failure."""

    trials: Trials
    charged: Group
    """Failed alone.  The others of those who failed run again, as they are."""


def judge(trials: Trials, failed: Group) -> Verdict:
    """Who is to blame when these failed at one moment.

    Suspects are blamed before others that ran beside them.  Who does so twice is suspected too, or a second cause that
    keeps coming in beside them would never be found.
    """
    accused = failed & trials.running
    blamed = accused or failed
    others = _without(trials.groups, blamed)
    if len(blamed) == 1:
        groups = others
    elif accused:
        groups = (*_halves(accused), *others)
    else:
        groups = (*others, *_halves(failed))
    beside = failed - blamed - trials.suspects
    if again := beside & trials.spared:
        groups = (*groups, again)
    spared = trials.spared | beside if groups else _NOBODY
    return Verdict(Trials(groups, spared), blamed if len(blamed) == 1 else _NOBODY)


def _halves(group: Group) -> tuple[Group, Group]:
    ids = sorted(group)
    middle = len(ids) // 2
    return frozenset(ids[:middle]), frozenset(ids[middle:])


def _without(groups: tuple[Group, ...], ids: Group) -> tuple[Group, ...]:
    return tuple(left for group in groups if (left := group - ids))
