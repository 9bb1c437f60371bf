"""A consumer before an engine that takes whole batches."""

import json

import msgspec

from tests.support.batch_server import BatchServer, in_a_thread
from tests.support.builders import body
from tests.support.gpu import wait_until
from topics.records import Tier


def test_an_engine_of_static_batches_gets_full_ones_of_one_model_one_after_the_other(rig, monkeypatch):
    models = {name: {"pool": "default"} for name in ("one", "other")}
    monkeypatch.setenv("RAMPMETER_MODELS", json.dumps(models))
    monkeypatch.setenv("RAMPMETER_DEFAULT_MODEL", "one")

    def job(request_id, model):
        return rig.work(request_id, model=model, body=msgspec.Raw(body(model=model)))

    rig.put(*[job(f"{model}{n}", model) for n in range(8) for model in models])
    with in_a_thread(BatchServer()) as server:
        windows = {"static_window_medium_s": 2, "static_window_high_s": 0.1}
        consumer = rig.start(engine="openai", openai_base_url=server.url, static_batch_size=4, **windows)
        rig.wait_replies(16)
        assert sorted(map(sorted, server.batches)) == [["one"] * 4] * 2 + [["other"] * 4] * 2
        rig.put(job("late", "one"), lane=rig.lane(Tier.MEDIUM))
        rig.put(job("urgent", "one"), lane=rig.lane(Tier.HIGH))
        wait_until(lambda: len(rig.replies()) == 18, "the last two", consumer)
        assert server.came_late == 0
        assert sum(map(len, server.batches)) == 18
