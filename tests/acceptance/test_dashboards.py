"""Every panel of every dashboard shows something, once a real pipeline feeds a real Prometheus."""

import json
import re
import threading

import pynvml
import pytest

from docker import dashboards
from tests.support import command
from tests.support.door import Door
from tests.support.prometheus import Prometheus, needs_prometheus
from tests.support.streams_worker import wait_until

FILLED_S = 90.0
NEEDS_A_GPU = {"GPU memory", "GPU busy", "GPU temperature"}
"""What NVML cannot tell has no series: unknown is not zero."""
ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
ENV = {
    "RAMPMETER_GPU__SPEED": "20",
    # The tenants' cost is shown of the last whole window.
    "RAMPMETER_STREAMS__SPEND_WINDOW_S": "5",
}
PANELS = {
    f"{name}: {panel['title']}": target
    for name, made in dashboards.dashboards().items()
    for panel in made["panels"]
    for target in panel["targets"]
}


@pytest.fixture
def up(tmp_path):
    with command.Up("--no-llama", cwd=tmp_path, env=ENV) as running:
        yield running


@pytest.fixture
def door(up):
    note = json.loads((up.cwd / ".rampmeter" / "stack.json").read_text())["settings"]
    made = Door({"RAMPMETER_KAFKA__BOOTSTRAP_SERVERS": note["kafka"]["bootstrap.servers"]}, up.cwd)
    yield made
    made.stop()


@pytest.fixture
def load(up, door):
    """Requests by topic and by the door, until the test is over."""
    ending = threading.Event()

    def send():
        while not ending.is_set():
            door.call("POST", "/v1/chat/completions", ASKED)
            up.run("submit", "hello", "--max-tokens", "8", "--tenant", "acme", "--priority", "high")

    thread = threading.Thread(target=send)
    thread.start()
    yield
    ending.set()
    thread.join()


@pytest.mark.slow
@needs_prometheus
def test_every_panel_shows_something_and_knows_the_labels_of_its_legend(up, door, load):
    empty = {title for title in PANELS if title.partition(": ")[2] not in unknown_here()}
    with Prometheus(up.cwd, more=[door.status_url.removeprefix("http://")]) as prometheus:

        def is_filled():
            empty.difference_update({title for title in empty if shown(prometheus, title)})
            return not empty

        wait_until(is_filled, FILLED_S, lambda: f"no data: {sorted(empty)}")
        assert {title for title in NEEDS_A_GPU if shown(prometheus, f"gpu_consumers: {title}")} == (
            NEEDS_A_GPU - unknown_here()
        )


def shown(prometheus, title):
    """The panel's series."""
    found = prometheus.query(PANELS[title]["expr"])
    named = set(re.findall(r"\{\{(\w+)\}\}", PANELS[title]["legendFormat"]))
    assert all(named <= labels.keys() for labels, _ in found), f"{title}: {found}"
    return found


def unknown_here():
    """Panels that stay empty on this machine."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return NEEDS_A_GPU
    return set()
