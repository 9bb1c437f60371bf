"""A Kubernetes API over HTTP that keeps Deployments, pods and who else sizes them, and refuses what a Role leaves out.

It answers as the real one does where emulators do not: no `replicas` at zero, 409 for a stale version, 403, 404.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lightkube import Client, KubeConfig

NAMESPACE = "gpus"
_KINDS = {
    "horizontalpodautoscalers": "HorizontalPodAutoscalerList",
    "scaledobjects": "ScaledObjectList",
    "pods": "PodList",
}


class FakeCluster:
    """One namespace.  `calls` and `denied` are pairs of verb and resource."""

    def __init__(self):
        self.counts, self.version, self.pods, self.events = {}, 1, {}, []
        self.objects = {"horizontalpodautoscalers": [], "scaledobjects": []}
        self.has_keda = True
        self.calls, self.denied, self.raced = [], set(), 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def client(self):
        url = f"http://127.0.0.1:{self._server.server_port}"
        one = {"name": "fake"}
        config = {
            "clusters": [{**one, "cluster": {"server": url}}],
            "users": [{**one, "user": {"token": "t"}}],
            "contexts": [{**one, "context": {"cluster": "fake", "user": "fake", "namespace": NAMESPACE}}],
            "current-context": "fake",
        }
        return Client(KubeConfig.from_dict(config), namespace=NAMESPACE, trust_env=False)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def deploy(self, name, count):
        self.counts[name] = count

    def add_pod(self, name, *, running=True, ready=True, **meta):
        self.pods[name] = {
            "metadata": {"name": name, "labels": {"app": "gpu", "pod-template-hash": "t1"}, **meta},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {
                "phase": "Running" if running else "Pending",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": [
                    {
                        "name": "c", "image": "i", "imageID": "", "ready": ready, "restartCount": 0,
                        "state": {"running": {}} if running else {"waiting": {}},
                    }
                ],
            },
        }  # fmt: skip

    def own(self, resource, name, deployment):
        self.objects[resource].append(
            {
                "metadata": {"name": name},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": deployment}, "maxReplicas": 3},
            }
        )

    def answer(self, verb, parts, body):
        """Status and object for a call on the parts of a path behind the namespace."""
        resource = parts[0] if len(parts) < 3 else f"{parts[0]}/{parts[2]}"
        verb = "list" if verb == "get" and len(parts) == 1 else verb
        self.calls.append((verb, resource))
        if (verb, resource) in self.denied:
            return 403, _status(403, f"pods is forbidden: User cannot {verb} resource {resource}")
        if (verb, resource) == ("create", "events"):
            self.events.append(body)
            return 201, body
        if resource == "deployments/scale":
            return self._scale(verb, parts[1], body)
        if resource == "pods" and verb == "patch":
            return self._patch_pod(parts[1], body)
        if resource == "scaledobjects" and not self.has_keda:
            return 404, _status(404, "the server could not find the requested resource")
        items = list(self.pods.values()) if resource == "pods" else self.objects[resource]
        return 200, {"kind": _KINDS[resource], "metadata": {}, "items": items}

    def _scale(self, verb, name, body):
        if name not in self.counts:
            return 404, _status(404, f'deployments.apps "{name}" not found')
        if verb == "patch":
            if self.raced:
                self.raced, self.version = self.raced - 1, self.version + 1
            if body["metadata"]["resourceVersion"] != str(self.version):
                return 409, _status(409, "the object has been modified")
            self.counts[name], self.version = body["spec"]["replicas"], self.version + 1
        count = self.counts[name]
        return 200, {
            "metadata": {"name": name, "resourceVersion": str(self.version)},
            "spec": {"replicas": count} if count else {},
            "status": {"replicas": len(self.pods), "selector": "app=gpu"},
        }

    def _patch_pod(self, name, body):
        if name not in self.pods:
            return 404, _status(404, f'pods "{name}" not found')
        self.pods[name]["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return 200, self.pods[name]

    def _handler(fake):  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def _do(self, verb):
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length) or b"{}")
                path = self.path.partition("?")[0].partition(f"/namespaces/{NAMESPACE}/")[2]
                status, answer = fake.answer(verb, path.split("/"), body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self._do("get")

            def do_PATCH(self):
                self._do("patch")

            def do_POST(self):
                self._do("create")

        return Handler


def _status(code, message):
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
