"""The Faust application: how the shared client properties become Faust's, and which limits hold."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import faust
from faust.auth import SASLCredentials, SSLCredentials
from faust.exceptions import ConsumerNotStarted
from faust.types import TP
from faust.types.auth import CredentialsT

from streams import transport
from streams.assignor import Assignor
from streams.settings import StreamsSettings
from topics import catalog
from topics.errors import ConfigError


def build(settings: StreamsSettings, datadir: Path) -> faust.App:
    """An application that commits in order, declares no topic and holds little in memory."""
    section = settings.streams
    app = faust.App(
        catalog.streams_group(settings, section.shadow),
        broker=[f"kafka://{server.strip()}" for server in settings.kafka["bootstrap.servers"].split(",")],
        broker_credentials=credentials(settings.kafka),
        broker_client_id=settings.kafka.get("client.id", "rampmeter-streams"),
        broker_commit_interval=1.0,
        broker_commit_every=1000,
        broker_session_timeout=section.session_timeout_s,
        broker_heartbeat_interval=section.session_timeout_s / 5,
        broker_rebalance_timeout=20.0,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=4 * 1024**2,
        store="memory://",
        datadir=str(datadir),
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        table_cleanup_interval=min(30.0, section.spend_window_s),
        # Waiting for unacknowledged work would hold every rebalance up for as long as a deferral lasts; repeated
        # records are recognised by their reservation instead.
        stream_wait_empty=False,
        stream_buffer_maxsize=section.buffer_events,
        producer_acks=-1,
        PartitionAssignor=Assignor,
    )
    app.transport = transport.of(app)
    return app


def owned(app: faust.App) -> set[TP]:
    """Partitions that are this worker's now; any thread may ask.  Faust's assignor knows them only beside a table."""
    if app.tables:
        return set(app.assignor.assigned_actives())
    consumer = app._consumer  # noqa: SLF001 - the property would make one, in the wrong thread's loop
    try:
        return set() if consumer is None else set(consumer.assignment())
    except ConsumerNotStarted:
        return set()


def left_out(app: faust.App) -> frozenset[str]:
    """Topics that this worker did not know when it decided for the group; any thread may ask."""
    return cast(Assignor, app.assignor).unknown


def credentials(properties: Mapping[str, str]) -> CredentialsT | None:
    """Faust's credentials from librdkafka's property names; None for plain text."""
    protocol = properties.get("security.protocol", "plaintext").upper()
    if protocol == "PLAINTEXT":
        return None
    context = _tls(properties) if protocol.endswith("SSL") else None
    if protocol == "SSL":
        return SSLCredentials(context=context)
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "PLAIN")).upper()
    if mechanism not in {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}:
        raise ConfigError([f"RAMPMETER_KAFKA__SASL_MECHANISM={mechanism}: streams knows PLAIN and SCRAM-SHA-256/512"])
    return SASLCredentials(
        username=properties.get("sasl.username"),
        password=properties.get("sasl.password"),
        mechanism=mechanism,
        ssl_context=context,
    )


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
    if "ssl.certificate.location" in properties:
        context.load_cert_chain(
            properties["ssl.certificate.location"],
            properties.get("ssl.key.location"),
            properties.get("ssl.key.password"),
        )
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context
