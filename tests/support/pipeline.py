"""A streams worker and a GPU consumer on real topics, as a tenant sees them."""

import json
import time

from tests.support.streams_worker import chat, wait_until
from topics import codec
from topics.records import Control, ControlAction, ControlKind, Reply


class Pipeline:
    """A tenant's view of it."""

    def __init__(self, site, consumer, *, model):
        self.site, self.consumer, self._model = site, consumer, model
        self._log = site.log("replies", "decisions")

    def ask(self, request_id, text, **body):
        asked = json.loads(chat(text, model=self._model, temperature=0, **body))
        record = {"id": request_id, "tenant": "acme", "stream": True, "body": asked}
        self.site.send(json.dumps(record).encode(), headers=[("rampmeter_id", request_id.encode())])

    def cancel(self, request_id):
        order = Control(
            id=f"o-{request_id}", action=ControlAction.CANCEL, kind=ControlKind.REQUEST, name=request_id,
            at_s=time.time(), by="test",
        )  # fmt: skip
        self.site.send(codec.encode(order), "control", key=f"request:{request_id}".encode())
        return order

    def _read(self, name, request_id, decode):
        found = [m.value() for m in self._log.poll() if name in m.topic() and m.key() == request_id.encode()]
        return [decode(value) for value in found]

    def answers(self, request_id):
        return self._read("replies", request_id, codec.decode_answer)

    def reply(self, request_id):
        def ended():
            return [answer for answer in self.answers(request_id) if isinstance(answer, Reply)]

        (reply,) = wait_until(ended, 60, self.consumer.log)
        return reply

    def admission(self, request_id):
        return self._decision(request_id, "admission")

    def settlement(self, request_id):
        return self._decision(request_id, "settlement")

    def _decision(self, request_id, stage):
        def made():
            decisions = self._read("decisions", request_id, codec.decode_decision)
            return [decision for decision in decisions if decision.stage == stage]

        (decision,) = wait_until(made, 30)
        return decision
