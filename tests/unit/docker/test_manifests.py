"""What Kubernetes is given: fresh, sound by Kubernetes' own types, and consistent in itself."""

import math
import re
from dataclasses import asdict

import pytest
import yaml

from autoscaler.cluster import RULES
from docker import render
from gpu_consumers.settings import GpuSettings
from rampmeter.console.permission import Permission
from rampmeter.console.settings import ConsoleSettings
from rampmeter.manifests.values import NAME, Values
from tests.support import kubernetes_schema
from topics.settings import load

TEXTS = render.texts()
KUSTOMIZE = {path: text for path, text in TEXTS.items() if path.startswith("kubernetes/")}
DOCUMENTS = [(path, each) for path, text in KUSTOMIZE.items() for each in yaml.safe_load_all(text)]
PODS = [
    (f"{path} {each['metadata']['name']}", each["spec"]["template"])
    for path, each in DOCUMENTS
    if each["kind"] in {"Deployment", "Job"}
]
CONTROL = re.compile(r"\{\{- range[^}]*\}\}(?s:.*?)\{\{- end \}\}|\{\{- (?:if [^}]*|end) \}\}")
WORD = re.compile(r"\{\{ \.(Values\.\w+|Release\.Namespace) \}\}")


def of_kind(*kinds):
    return [each for _, each in DOCUMENTS if each["kind"] in kinds]


def named(kind, name):
    return next(each for each in of_kind(kind) if each["metadata"]["name"] == name)


def test_the_files_are_those_of_the_code():
    assert render.written() == TEXTS, "run: python -m docker.render"


@pytest.mark.parametrize(("path", "document"), DOCUMENTS, ids=[f"{path}-{each['kind']}" for path, each in DOCUMENTS])
def test_a_document_is_what_kubernetes_reads(path, document):
    assert kubernetes_schema.fault(document) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["template"]["spec"]["containers"][0].update(imagee="x"), "unknown"),
        (lambda spec: spec.update(replicas="2"), "replicas"),
        (lambda spec: spec.pop("selector"), "selector"),
    ],
)
def test_a_document_that_is_wrong_would_be_noticed(change, words):
    document = yaml.safe_load(TEXTS["kubernetes/base/streams.yaml"])
    change(document["spec"])
    assert words in kubernetes_schema.fault(document)


@pytest.mark.parametrize(("name", "template"), PODS, ids=[name for name, _ in PODS])
def test_a_pod_is_of_nobody_special_and_can_change_nothing(name, template):
    spec = template["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    calls_kubernetes = any(
        (each["name"], each["value"]) == ("RAMPMETER_AUTOSCALER__TARGET", "kubernetes") for each in container["env"]
    )
    assert spec["automountServiceAccountToken"] is calls_kubernetes
    assert spec["enableServiceLinks"] is False, "a Service's variables would look like settings of ours"


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda each: each["metadata"]["name"])
def test_a_deployment_selects_its_pods_and_probes_them(deployment):
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports


def test_the_console_is_reached_by_its_proxy_alone_and_lets_nobody_order(monkeypatch):
    (container,) = named("Deployment", "rampmeter-console")["spec"]["template"]["spec"]["containers"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    own = load(ConsoleSettings).console
    assert (own.host, Permission.of(own).is_possible) == ("0.0.0.0", False)
    assert container["command"] == ["rampmeter", "console"]
    service, policy = named("Service", "rampmeter-console"), named("NetworkPolicy", "rampmeter-console")
    assert (service["spec"]["type"], service["spec"]["ports"][0]["port"]) == ("ClusterIP", own.port)
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": own.port}]
    assert [each["namespaceSelector"]["matchLabels"] for each in rule["from"]] == [
        {"kubernetes.io/metadata.name": Values().proxy_namespace}
    ]


def test_consumers_have_no_count_and_time_to_end():
    for path, each in DOCUMENTS:
        if path.endswith("consumers.yaml"):
            settings = GpuSettings.model_validate(render.GPU if "/gpu/" in path else render.CPU)
            assert "replicas" not in each["spec"]
            grace_s = each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            assert grace_s == math.ceil(settings.gpu.termination_s)


def test_the_pools_are_on_the_gpus_that_their_settings_name():
    found = {}
    for each in yaml.safe_load_all(TEXTS["kubernetes/overlays/gpu/consumers.yaml"]):
        spec = each["spec"]["template"]["spec"]
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        limits = spec["containers"][0]["resources"]["limits"]
        (gpu,) = [name for name in limits if name.startswith("nvidia.com/")]
        assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        found[each["metadata"]["labels"]["rampmeter/role"]] = (gpu, term["matchExpressions"][0]["values"])
    pool = render.GPU_POOLS["default"]
    assert found == {
        "general": ("nvidia.com/gpu", pool["gpu_types"]),
        "long": ("nvidia.com/gpu", pool["gpu_types"]),
        "short": ("nvidia.com/mig-3g.20gb", pool["role_gpu_types"]["short"]),
    }


def test_the_role_allows_what_the_code_calls_and_no_more():
    (role,) = of_kind("Role")
    allowed = {
        (group, thing, tuple(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for thing in rule["resources"]
    }
    assert allowed == {(rule.group, rule.resource, rule.verbs) for rule in RULES}
    assert not {"*", "delete", "update"} & {verb for _, _, verbs in allowed for verb in verbs}


def test_whatever_selects_pods_finds_some():
    labels = [template["metadata"]["labels"] for _, template in PODS]
    chosen = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget", "PodMonitor")]
    chosen += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind("NetworkPolicy")]
    chosen += [each["spec"]["selector"] for each in of_kind("Service")]
    for wanted in chosen:
        assert any(wanted.items() <= each.items() for each in labels), wanted


def test_hpa_and_keda_size_a_deployment_that_is_there_within_the_same_bounds():
    (hpa,), (scaled,) = of_kind("HorizontalPodAutoscaler"), of_kind("ScaledObject")
    deployment = named("Deployment", hpa["spec"]["scaleTargetRef"]["name"])
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (metric,) = hpa["spec"]["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "10"}
    assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == (2, scaled["spec"]["maxReplicaCount"]) == (2, 10)
    (trigger,) = scaled["spec"]["triggers"]
    host, _, port = trigger["metadata"]["scalerAddress"].partition(":")
    service = named("Service", host.partition(".")[0])
    assert service["spec"]["ports"][0]["port"] == int(port)


def test_each_component_has_the_autoscaler_leave_the_count_to_it():
    targets = {
        path.split("/")[2]: next(e["value"] for e in container["env"] if e["name"] == "RAMPMETER_AUTOSCALER__TARGET")
        for path, each in DOCUMENTS
        if path.endswith("autoscaler.yaml")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert targets == {"autoscaler.yaml": "kubernetes", "hpa": "metric", "keda": "keda"}


def test_every_file_of_kustomize_is_there():
    for path, each in DOCUMENTS:
        if each["kind"] in {"Kustomization", "Component"}:
            folder = (render.FOLDER / path).parent
            patches = [patch["path"] for patch in each.get("patches", [])]
            for name in (*each["resources"], *each.get("components", []), *patches):
                assert (folder / name).exists(), f"{path}: {name}"


def filled_in(template):
    """As Helm does it with the chart's own values, all conditions met."""
    told = {f"Values.{name}": value for name, value in asdict(Values()).items()}
    told["Release.Namespace"] = Values().namespace
    text = CONTROL.sub("", template)
    return list(yaml.safe_load_all(WORD.sub(lambda word: str(told[word[1]]), text)))


@pytest.mark.parametrize("path", [path for path in TEXTS if "/templates/" in path])
def test_what_the_chart_makes_is_what_kubernetes_reads(path):
    assert [fault for each in filled_in(TEXTS[path]) if each and (fault := kubernetes_schema.fault(each))] == []


def test_the_chart_with_its_own_values_is_the_base():
    for name, documents in render.parts(Values()).items():
        if name == "autoscaler":
            continue
        assert filled_in(TEXTS[f"helm/{NAME}/templates/{name}.yaml"]) == documents


def test_the_chart_asks_only_for_values_that_it_has():
    known = yaml.safe_load(TEXTS[f"helm/{NAME}/values.yaml"]).keys()
    for path, text in TEXTS.items():
        assert set(re.findall(r"\.Values\.(\w+)", text)) <= known, path
