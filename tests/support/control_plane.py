"""A real control plane of Kubernetes on loopback, with one node that needs no machine.

etcd, apiserver, controller-manager and scheduler are the real ones; a thread stands in for the kubelet: pods that are
bound run at once and go when they are deleted.
"""

import csv
import datetime as dt
import json
import ssl
import subprocess
import threading
import time
from contextlib import suppress

import httpx2
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node, Pod

from tests.support.streams_worker import free_port
from topics.local_process import HOST

START_S = 300
ANSWER_S = 60
BEAT_S = 5
"""How often the node says that it lives; after 40 s of silence its pods count as unready."""
NODE = "simulated"
AGGREGATOR = "aggregator.invalid"
_ROOM = {"cpu": "64", "memory": "1Ti", "pods": "100", "nvidia.com/gpu": "8", "nvidia.com/mig-3g.20gb": "8"}
_GPU_LABEL = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


class ControlPlane:
    """Started by `start`; everything it needs lies in `folder`."""

    def __init__(self, binary, folder):
        self._binary, self.folder = binary, folder
        self.port = free_port()
        self.hosts = {}
        """By namespace: who tends pods in place of the simulated node, by `tend(client, pod)`."""
        self._processes, self._stop, self._threads = [], threading.Event(), []
        self._tokens = [("admin-token", "admin", "1", "system:masters")]

    def start(self, users=()):
        """Start the servers; `users` may log in by `client`, with no rights but those that roles give them."""
        self._tokens += [(f"token-{user}", user, user, "system:serviceaccounts") for user in users]
        self._write_secrets()
        etcd_url, peer_url = (f"http://{HOST}:{free_port()}" for _ in range(2))
        self._run(
            "etcd", data_dir=self.folder / "etcd", listen_client_urls=etcd_url, advertise_client_urls=etcd_url,
            listen_peer_urls=peer_url, initial_advertise_peer_urls=peer_url,
            initial_cluster=f"default={peer_url}", unsafe_no_fsync="true",
        )  # fmt: skip
        self._run(
            "apiserver", etcd_servers=etcd_url, bind_address=HOST, advertise_address=HOST, secure_port=self.port,
            endpoint_reconciler_type="none", authorization_mode="RBAC", service_cluster_ip_range="10.96.0.0/16",
            tls_cert_file=self.folder / "server.pem", tls_private_key_file=self.folder / "server.key",
            client_ca_file=self.folder / "ca.pem", token_auth_file=self.folder / "tokens.csv",
            requestheader_client_ca_file=self.folder / "ca.pem", requestheader_allowed_names=AGGREGATOR,
            requestheader_username_headers="X-Remote-User", requestheader_group_headers="X-Remote-Group",
            requestheader_extra_headers_prefix="X-Remote-Extra-",
            proxy_client_cert_file=self.folder / "proxy.pem", proxy_client_key_file=self.folder / "proxy.key",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=self.folder / "accounts.pub",
            service_account_signing_key_file=self.folder / "accounts.key",
        )  # fmt: skip
        self._wait_ready()
        kubeconfig = self.folder / "kubeconfig"
        common = {
            "kubeconfig": kubeconfig, "authentication_kubeconfig": kubeconfig, "authorization_kubeconfig": kubeconfig,
            "bind_address": HOST, "leader_elect": "false",
        }  # fmt: skip
        accounts = {"service_account_private_key_file": self.folder / "accounts.key"}
        accounts["root_ca_file"] = self.folder / "ca.pem"
        hasty = {"horizontal_pod_autoscaler_sync_period": "1s"}
        self._run("controller-manager", secure_port=free_port(), **common, **accounts, **hasty)
        self._run("scheduler", secure_port=free_port(), **common)
        self.client().create(Node(metadata=ObjectMeta(name=NODE, labels=_GPU_LABEL)))
        self._spawn(self._beat)
        self._spawn(self._tend)
        return self

    def stop(self):
        self._stop.set()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for thread in self._threads:  # whose calls have ended with the servers
            thread.join()

    def check(self):
        """Fail if a server or the node has ended."""
        assert all(process.poll() is None for process in self._processes), self._logs()
        assert all(thread.is_alive() for thread in self._threads)

    def client(self, user="admin", namespace="default"):
        config = KubeConfig.from_dict(self._kubeconfig(user, namespace))
        return Client(config, namespace=namespace, timeout=httpx2.Timeout(ANSWER_S), trust_env=False)

    def write_kubeconfig(self, path, user="admin", namespace="default"):
        path.write_text(json.dumps(self._kubeconfig(user, namespace)))  # JSON is YAML

    def make_namespace(self, name):
        self.client().create(Namespace(metadata=ObjectMeta(name=name)))

    def _run(self, server, **flags):
        with (self.folder / f"{server}.log").open("w") as log:
            command = [self._binary, server, *options(flags)]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _spawn(self, work):
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _write_secrets(self):
        ca = trustme.CA()
        ca.cert_pem.write_to_path(self.folder / "ca.pem")
        server = ca.issue_cert(HOST, "localhost", "10.96.0.1", "kubernetes.default.svc")
        proxy = ca.issue_cert(AGGREGATOR, common_name=AGGREGATOR)
        for name, issued in (("server", server), ("proxy", proxy)):
            issued.private_key_pem.write_to_path(self.folder / f"{name}.key")
            issued.private_key_and_cert_chain_pem.write_to_path(self.folder / f"{name}.pem")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / "accounts.key").write_bytes(private)
        (self.folder / "accounts.pub").write_bytes(public)
        with (self.folder / "tokens.csv").open("w", newline="") as file:
            csv.writer(file).writerows(self._tokens)
        self.write_kubeconfig(self.folder / "kubeconfig")

    def _kubeconfig(self, user, namespace):
        token = next(token for token, name, *_ in self._tokens if name == user)
        ca = str(self.folder / "ca.pem")
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"https://{HOST}:{self.port}", "certificate-authority": ca}}
            ],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "x",
        }

    def _wait_ready(self):
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        http = httpx2.Client(verify=context, trust_env=False, headers={"Authorization": f"Bearer {self._tokens[0][0]}"})
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            self.check()
            with suppress(httpx2.HTTPError):
                if http.get(f"https://{HOST}:{self.port}/readyz").is_success:
                    return
            time.sleep(0.2)
        raise AssertionError(self._logs())

    def _logs(self):
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))

    def _beat(self):
        client = self.client()
        while True:
            with suppress(httpx2.HTTPError):  # a slow answer is no reason to fall silent
                client.patch(Node.Status, NODE, {"status": _node_status()})
            if self._stop.wait(BEAT_S):
                return

    def _tend(self):
        client = self.client(namespace="*")
        while not self._stop.wait(0.1):
            with suppress(httpx2.HTTPError):  # the next look sees what is there then
                for pod in client.list(Pod, namespace="*", fields={"spec.nodeName": NODE}):
                    with suppress(ApiError):  # it has changed meanwhile
                        self.hosts.get(pod.metadata.namespace, _Simulated).tend(client, pod)


def options(flags):
    """As the servers take them: `a_b` is `--a-b`."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]


class _Simulated:
    @staticmethod
    def tend(client, pod):
        if pod.metadata.deletionTimestamp:
            remove(client, pod)
        elif pod.status.phase == "Pending":
            say_running(client, pod)


def remove(client, pod):
    """It has ended."""
    client.delete(Pod, pod.metadata.name, namespace=pod.metadata.namespace, grace_period=0)


def say_running(client, pod, *, is_ready=True):
    status = _running(pod, "True" if is_ready else "False")
    client.patch(Pod.Status, pod.metadata.name, {"status": status}, namespace=pod.metadata.namespace)


def _node_status():
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "", "lastTransitionTime": _now()}
    return {"allocatable": _ROOM, "capacity": _ROOM, "conditions": [{**ready, "lastHeartbeatTime": _now()}]}


def _running(pod, ready):
    containers = [
        {
            "name": each.name, "image": each.image, "imageID": "", "ready": True, "started": True, "restartCount": 0,
            "state": {"running": {"startedAt": _now()}},
        }
        for each in pod.spec.containers
    ]  # fmt: skip
    conditions = [
        {"type": name, "status": status, "lastTransitionTime": _now()}
        for name, status in (("Initialized", "True"), ("ContainersReady", ready), ("Ready", ready))
    ]
    return {"phase": "Running", "startTime": _now(), "containerStatuses": containers, "conditions": conditions}


def _now():
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
