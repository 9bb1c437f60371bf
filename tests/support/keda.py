"""A real KEDA beside a `ControlPlane`: its operator, and its metrics adapter behind the API server."""

import os
import subprocess

from lightkube import codecs
from lightkube.resources.apiregistration_v1 import APIService

from tests.support import started
from tests.support.control_plane import options
from tests.support.streams_worker import free_port
from topics.local_process import HOST

NAMESPACE = "keda"
METRICS = "v1beta1.external.metrics.k8s.io"


class Keda:
    """Started by `start` from the binaries and definitions in `built`."""

    def __init__(self, built, plane):
        self._built, self._plane, self._processes = built, plane, []
        self._folder = plane.folder / NAMESPACE
        self._admin = plane.client(namespace=NAMESPACE)

    def start(self):
        self._plane.make_namespace(NAMESPACE)
        for path in self._built.glob("*.yaml"):
            for definition in codecs.load_all_yaml(path.read_text()):
                self._admin.apply(definition, field_manager="test")
        self._folder.mkdir()
        for name, source in (("ca.crt", "ca.pem"), ("tls.crt", "server.pem"), ("tls.key", "server.key")):
            (self._folder / name).write_bytes((self._plane.folder / source).read_bytes())
        port, questions, kubeconfig = free_port(), free_port(), self._plane.folder / "kubeconfig"
        self._run(
            "operator", kubeconfig=kubeconfig, cert_dir=self._folder, ca_dir=self._folder,
            metrics_bind_address=f"{HOST}:{free_port()}", health_probe_bind_address=f"{HOST}:{free_port()}",
            metrics_service_bind_address=f"{HOST}:{questions}",
        )  # fmt: skip
        self._run(
            "adapter", kubeconfig=kubeconfig, lister_kubeconfig=kubeconfig, authentication_kubeconfig=kubeconfig,
            authorization_kubeconfig=kubeconfig, bind_address=HOST, secure_port=port, port=free_port(),
            metrics_service_address=f"localhost:{questions}", cert_dir=self._folder,
            client_ca_file=self._folder / "ca.crt", tls_cert_file=self._folder / "tls.crt",
            tls_private_key_file=self._folder / "tls.key",
        )  # fmt: skip
        for document in _registration(port):
            self._admin.apply(codecs.from_dict(document), field_manager="test")
        return self

    def stop(self):
        self._admin.delete(APIService, METRICS)
        for process in self._processes:
            process.kill()
            process.wait()

    def is_serving(self):
        """Whether the API server has its metrics.  Fails if a process of it has ended."""
        assert all(process.poll() is None for process in self._processes), self.logs()
        conditions = self._admin.get(APIService, METRICS).status.conditions or []
        return any((each.type, each.status) == ("Available", "True") for each in conditions)

    def logs(self):
        return "\n".join(path.read_text()[-4000:] for path in self._folder.glob("*.log"))

    def _run(self, name, **flags):
        names = {"POD_NAMESPACE": NAMESPACE, "WATCH_NAMESPACE": "", "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE}
        with (self._folder / f"{name}.log").open("w") as log:
            command = [self._built / name, *options(flags)]
            self._processes.append(started.popen(command, env=os.environ | names, stdout=log, stderr=subprocess.STDOUT))


def _registration(port):
    """The adapter's port, as the API server finds it."""
    service = {"name": "keda-metrics", "namespace": NAMESPACE, "port": port}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service["name"], "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"name": "https", "port": port}]},
    }
    group, _, version = METRICS.partition(".")[::-1]
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": METRICS},
        "spec": {
            "service": service,
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
        },
    }
