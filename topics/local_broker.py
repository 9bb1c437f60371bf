"""An Apache Kafka broker as a child of this process, for laptops and tests; data survives restarts.

The one node is broker and controller, listens on loopback only and has no security: never a production broker.
"""

import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from topics import broker_config, broker_jars, local_process
from topics.local_server import LocalServer

DEFAULT_HEAP_BYTES = 256 * 1024**2
"""Too small: large fetches end in an out-of-memory exit.  Too large: less memory for the model."""
FORMAT_LIMIT_S = 60.0
# Tries of at most 0.3 s each: a minute, where a slow laptop needs 10 s.
START_TRIES = 200
ANSWER_WAIT_S = 0.25
RETRY_S = 0.05
_ANY = {"client": 0, "controller": 0}


def _ignore(_line: str) -> None:
    pass


class LocalBroker(LocalServer):
    """The broker.  Its start fetches the jars when they are missing, and formats new storage.

    `port` 0 takes the port of the last start when it is free, else any free one; `port_setting` is what an error
    calls it.  `properties` override the broker's own; `is_lasting` is for one that has much to do, see
    `broker_config.java_command`.  What it said between the two last starts is beside its log, as `.1`.
    """

    name = "the embedded Kafka broker"
    log_name = "broker.log"
    stop_grace_s = 15.0
    way_out = ". An empty data directory starts afresh, without the records of this one."

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        properties: Mapping[str, str] = MappingProxyType({}),
        heap_bytes: int = DEFAULT_HEAP_BYTES,
        is_lasting: bool = False,
        on_progress: broker_jars.Progress | None = None,
        port_setting: str = "the broker's port",
    ) -> None:
        super().__init__(data_dir)
        self._wanted_port = port
        self._properties = dict(properties)
        self._heap_bytes = heap_bytes
        self._is_lasting = is_lasting
        self._on_progress = on_progress or _ignore
        self._port_setting = port_setting
        self._ports = _ANY

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; port 0 before the first start."""
        return f"{local_process.HOST}:{self._ports['client']}"

    def _prepare(self) -> tuple[str, ...]:
        class_path = broker_jars.class_path(broker_jars.default_dir(), self._on_progress)
        self._ports = local_process.choose_ports(
            self._data_dir, {**_ANY, "client": self._wanted_port}, server=self.name, setting=self._port_setting
        )
        properties = broker_config.write_properties(self._data_dir, self._ports, self._properties)
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        # The storage tool writes this file last.
        if not (broker_config.storage_dir(self._data_dir) / "meta.properties").exists():
            self._format(class_path, properties)
        return broker_config.java_command(
            class_path, self._heap_bytes, "kafka.Kafka", str(properties), is_lasting=self._is_lasting
        )

    def _format(self, class_path: str, properties: Path) -> None:
        self._on_progress(f"Kafka {broker_jars.KAFKA_VERSION}: formatting new storage in {self._data_dir}")
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(properties))
        command = broker_config.java_command(class_path, self._heap_bytes, *tool)
        with self.log_path.open("ab") as log:
            try:
                subprocess.run(  # noqa: S603 - our own command line
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=FORMAT_LIMIT_S, check=True
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise self._failure("could not format its storage") from error

    def _wait_for_answer(self, process: local_process.LocalProcess) -> None:
        self._on_progress(f"Kafka {broker_jars.KAFKA_VERSION}: starting on {self.bootstrap_servers}")
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 0,  # a line for each refused connection otherwise
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 100,
            }
        )
        for _ in range(START_TRIES):
            if not process.is_running():
                raise self._failure("ended while it started")
            try:
                if admin.list_topics(timeout=ANSWER_WAIT_S).brokers:
                    return
            except KafkaException:
                sleep(RETRY_S)
        raise self._failure("does not answer")
