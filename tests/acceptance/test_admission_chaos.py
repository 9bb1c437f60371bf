"""Streams workers that are killed under load: exactly one reply for each request, nothing charged twice."""

import pytest

from tests.benchmarks.ground import Ground
from tests.support import admission_chaos


@pytest.fixture
def site(broker, redis_server, tmp_path):
    ground = Ground(broker.bootstrap_servers, redis_server.url, broker.pid, redis_server.pid, tmp_path, lambda _: None)
    with ground.site() as made:
        yield made


@pytest.mark.timeout(400)
def test_workers_killed_and_rebalanced_under_load_lose_nothing_and_charge_nothing_twice(site, tmp_path):
    found = admission_chaos.Chaos(site, tmp_path, lambda _: None).run(admission_chaos.Plan(kills=5))
    assert found.kills == 5
    assert found.answered_twice == {}
    assert (found.lost, found.duplicates, found.faults) == (0, 0, {})
    assert found.max_stall_s is not None
    assert (found.unanswered, found.charged_twice, found.still_reserved) == (0, 0, 0)
    assert found.missing_units == pytest.approx(found.settled_units, abs=0.01)
    assert min(found.settled_units.values()) > 0
    assert found.outcomes["completed:none"] > 0
    assert any(outcome.startswith("rejected") for outcome in found.outcomes)
    assert found.tracebacks == 0


@pytest.mark.timeout(300)
def test_the_table_is_as_small_as_before_after_five_restarts_past_the_expiry_of_its_windows(site, tmp_path):
    before, after = admission_chaos.rows_after_restarts(site, tmp_path, 5)
    assert min(before) > 0, "nothing was there to expire"
    assert after == [0.0] * 5
