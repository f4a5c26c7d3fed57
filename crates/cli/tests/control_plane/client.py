# Kubernetes' client for Python against the server named by the first argument: typed and dynamic, every verb.
import json
import sys
import threading

from kubernetes import client, dynamic, watch
from kubernetes.client.exceptions import ApiException

configuration = client.Configuration()
configuration.host = sys.argv[1]
api_client = client.ApiClient(configuration)
core = client.CoreV1Api(api_client)
discovery = client.DiscoveryV1Api(api_client)
networking = client.NetworkingV1Api(api_client)
coordination = client.CoordinationV1Api(api_client)
NAMESPACE = "python"


def meta(name, **more):
    return client.V1ObjectMeta(name=name, **more)


def refused(status, reason, call, *arguments, **keywords):
    """The call fails in this way and in no other."""
    try:
        call(*arguments, **keywords)
    except ApiException as error:
        body = json.loads(error.body)
        assert (error.status, body["reason"], body["kind"]) == (status, reason, "Status"), error
        return body
    raise AssertionError(f"{call.__name__} was not refused")


def services():
    service = client.V1Service(
        metadata=meta("web", labels={"app": "web"}),
        spec=client.V1ServiceSpec(selector={"app": "web"}, ports=[client.V1ServicePort(name="http", port=80)]),
    )
    start = core.list_namespaced_service(NAMESPACE).metadata.resource_version
    seen = []
    watching = threading.Thread(target=follow, args=(start, seen), daemon=True)
    watching.start()

    created = core.create_namespaced_service(NAMESPACE, service)
    assert created.spec.cluster_ip.startswith("10.") and created.spec.type == "ClusterIP", created
    assert networking.read_ip_address(created.spec.cluster_ip).spec.parent_ref.name == "web"
    refused(409, "AlreadyExists", core.create_namespaced_service, NAMESPACE, service)
    assert core.read_namespaced_service("web", NAMESPACE).to_dict() == created.to_dict()
    found = core.list_service_for_all_namespaces(label_selector="app=web", field_selector=f"metadata.namespace={NAMESPACE}")
    assert [it.metadata.name for it in found.items] == ["web"]

    patched = core.patch_namespaced_service("web", NAMESPACE, {"spec": {"type": "NodePort"}})
    assert 30000 <= patched.spec.ports[0].node_port <= 32767, patched
    patched.metadata.labels["step"] = "replaced"
    replaced = core.replace_namespaced_service("web", NAMESPACE, patched)
    assert replaced.metadata.labels["step"] == "replaced"
    refused(409, "Conflict", core.replace_namespaced_service, "web", NAMESPACE, patched)
    body = refused(422, "Invalid", core.patch_namespaced_service, "web", NAMESPACE, {"spec": {"clusterIP": "1.2.3.4"}})
    assert any(cause["field"].startswith("spec.clusterIP") for cause in body["details"]["causes"]), body
    operations = [{"op": "add", "path": "/metadata/labels/step", "value": "patched"}]
    assert core.patch_namespaced_service("web", NAMESPACE, operations).metadata.labels["step"] == "patched"
    assert core.read_namespaced_service_status("web", NAMESPACE).metadata.name == "web"

    core.delete_namespaced_service("web", NAMESPACE)
    refused(404, "NotFound", core.read_namespaced_service, "web", NAMESPACE)
    refused(404, "NotFound", networking.read_ip_address, created.spec.cluster_ip)
    watching.join(300)
    assert not watching.is_alive(), seen
    assert seen == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"], seen


def follow(start, seen):
    for event in watch.Watch().stream(core.list_namespaced_service, NAMESPACE, resource_version=start, timeout_seconds=300):
        assert isinstance(event["object"], client.V1Service), event
        seen.append(event["type"])
        if event["type"] == "DELETED":
            return


def slices():
    endpoints = [client.V1Endpoint(addresses=["10.1.2.3"], conditions=client.V1EndpointConditions(ready=True))]
    endpoint_slice = client.V1EndpointSlice(
        metadata=meta("web-1", labels={"kubernetes.io/service-name": "web"}),
        address_type="IPv4", endpoints=endpoints, ports=[client.DiscoveryV1EndpointPort(name="http", port=8080)],
    )
    created = discovery.create_namespaced_endpoint_slice(NAMESPACE, endpoint_slice)
    assert created.ports[0].protocol == "TCP"
    created.endpoints[0].conditions.ready = False
    replaced = discovery.replace_namespaced_endpoint_slice("web-1", NAMESPACE, created)
    assert replaced.endpoints[0].conditions.ready is False
    assert replaced.metadata.generation == created.metadata.generation + 1
    wrong = {"addressType": "IPv6"}
    refused(422, "Invalid", discovery.patch_namespaced_endpoint_slice, "web-1", NAMESPACE, wrong)
    assert len(discovery.list_namespaced_endpoint_slice(NAMESPACE).items) == 1
    discovery.delete_collection_namespaced_endpoint_slice(NAMESPACE)
    assert discovery.list_namespaced_endpoint_slice(NAMESPACE).items == []


def others():
    lease = client.V1Lease(metadata=meta("leader"), spec=client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15))
    assert coordination.create_namespaced_lease(NAMESPACE, lease).spec.holder_identity == "me"
    coordination.delete_namespaced_lease("leader", NAMESPACE)
    node = client.V1Node(metadata=meta("worker"))
    assert core.create_node(node).metadata.uid
    assert core.patch_node("worker", {"metadata": {"labels": {"zone": "a"}}}).metadata.labels["zone"] == "a"
    core.delete_node("worker")
    cidrs = networking.list_service_cidr().items
    assert [it.spec.cidrs for it in cidrs if it.metadata.name == "kubernetes"], cidrs
    involved = client.V1ObjectReference(api_version="v1", kind="Service", name="web", namespace=NAMESPACE)
    event = client.CoreV1Event(metadata=meta("web.1"), involved_object=involved, reason="Tested", message="by a client", type="Normal")
    assert core.create_namespaced_event(NAMESPACE, event).reason == "Tested"
    pages, token = [], None
    while True:
        page = core.list_namespace(limit=2, _continue=token)
        pages += [it.metadata.name for it in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert pages == sorted(pages) and NAMESPACE in pages and "kube-system" in pages, pages
    refused(400, "BadRequest", core.list_namespace, label_selector="not a selector (")


def dynamically():
    found = dynamic.DynamicClient(api_client)
    resource = found.resources.get(api_version="v1", kind="Service")
    assert resource.namespaced and "patch" in resource.verbs, resource
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dynamic"}, "spec": {"ports": [{"port": 53, "protocol": "UDP"}]}}
    assert resource.create(body=body, namespace=NAMESPACE).spec.clusterIP
    applied = resource.server_side_apply(
        body={**body, "metadata": {"name": "dynamic", "labels": {"applied": "yes"}}},
        namespace=NAMESPACE, name="dynamic", field_manager="python", force_conflicts=True)
    assert applied.metadata.labels.applied == "yes", applied
    assert [it.metadata.name for it in resource.get(namespace=NAMESPACE).items] == ["dynamic"]
    resource.delete(name="dynamic", namespace=NAMESPACE)
    kinds = {it.kind for it in found.resources.search(group="networking.k8s.io")}
    assert {"IPAddress", "ServiceCIDR"} <= kinds, kinds
    assert found.resources.get(api_version="v1", kind="Pod").get().items == []
    try:
        found.resources.get(api_version="v1", kind="ConfigMap")
    except dynamic.exceptions.ResourceNotFoundError:
        pass
    else:
        raise AssertionError("there are no ConfigMaps here")


core.create_namespace(client.V1Namespace(metadata=meta(NAMESPACE)))
services()
slices()
others()
dynamically()
core.delete_namespace(NAMESPACE)
print("all is well")
