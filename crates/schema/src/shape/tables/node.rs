//! Node (`core/v1`).

use crate::shape::{
    Struct,
    Type::{Bool, Int32, Int64, List, Map, Object, Quantity, Text, Time},
    field,
    meta::{API_VERSION, KIND, OBJECT_META, TEXTS},
    structure,
};

pub(crate) static NODE: Struct = structure(
    "io.k8s.api.core.v1.Node",
    "A machine of the cluster.",
    &[
        API_VERSION,
        KIND,
        field("metadata", 1, Object(&OBJECT_META)).doc("Standard metadata."),
        field("spec", 2, Object(&NODE_SPEC)).doc("The wanted behaviour."),
        field("status", 3, Object(&NODE_STATUS)).doc("The observed state."),
    ],
);

pub(crate) static NODE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.NodeSpec",
    "The wanted behaviour of a Node.",
    &[
        field("podCIDR", 1, Text).doc("The first of podCIDRs."),
        field("podCIDRs", 7, TEXTS)
            .merged_set()
            .doc("Ranges of the addresses of Pods on the node, at most one of each IP family."),
        field("providerID", 3, Text).doc("Identity of the machine at its cloud provider."),
        field("unschedulable", 4, Bool).doc("True if no new Pods are placed on the node."),
        field("taints", 5, List(&Object(&TAINT))).atomic().doc("Taints of the node."),
        field("configSource", 6, Object(&NODE_CONFIG_SOURCE)).pointer().doc("Not used."),
        field("externalID", 2, Text).doc("Not used."),
    ],
);

pub(crate) static TAINT: Struct = structure(
    "io.k8s.api.core.v1.Taint",
    "A mark that keeps Pods away from the node unless they tolerate it.",
    &[
        field("key", 1, Text).required().doc("Name of the taint."),
        field("value", 2, Text).doc("Value of the taint."),
        field("effect", 3, Text).one_of(&["NoExecute", "NoSchedule", "PreferNoSchedule"]).required().doc(
            "What happens to Pods that do not tolerate the taint. NoSchedule: none is placed on the \
                 node. PreferNoSchedule: none, if there is another node. NoExecute: running ones are \
                 removed, too.",
        ),
        field("timeAdded", 4, Time).pointer().doc("When it was added."),
    ],
);

pub(crate) static NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.NodeConfigSource",
    "Source of the configuration of a node. Not used.",
    &[field("configMap", 2, Object(&CONFIG_MAP_NODE_CONFIG_SOURCE))
        .pointer()
        .doc("A ConfigMap with the configuration.")],
);

pub(crate) static CONFIG_MAP_NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.ConfigMapNodeConfigSource",
    "A ConfigMap with the configuration of a node. Not used.",
    &[
        field("namespace", 1, Text).required().doc("Namespace of the ConfigMap."),
        field("name", 2, Text).required().doc("Name of the ConfigMap."),
        field("uid", 3, Text).doc("Identity of the ConfigMap."),
        field("resourceVersion", 4, Text).doc("Version of the ConfigMap."),
        field("kubeletConfigKey", 5, Text).required().doc("Key within the ConfigMap."),
    ],
);

pub(crate) static NODE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeStatus",
    "The observed state of a Node.",
    &[
        field("capacity", 1, Map(&Quantity)).doc("Resources of the machine."),
        field("allocatable", 2, Map(&Quantity)).doc("Resources that Pods may use."),
        field("phase", 3, Text).one_of(&["Pending", "Running", "Terminated"]).doc("Not used."),
        field("conditions", 4, List(&Object(&NODE_CONDITION)))
            .keyed(&["type"])
            .doc("Conditions of the node."),
        field("addresses", 5, List(&Object(&NODE_ADDRESS)))
            .keyed(&["type"])
            .doc("Addresses and names at which the node is reached."),
        field("daemonEndpoints", 6, Object(&NODE_DAEMON_ENDPOINTS)).doc("Ports of the daemons on the node."),
        field("nodeInfo", 7, Object(&NODE_SYSTEM_INFO)).doc("Versions and identities of the node."),
        field("images", 8, List(&Object(&CONTAINER_IMAGE))).atomic().doc("Container images on the node."),
        field("volumesInUse", 9, TEXTS).atomic().doc("Volumes that the node uses."),
        field("volumesAttached", 10, List(&Object(&ATTACHED_VOLUME)))
            .atomic()
            .doc("Volumes that are attached to the node."),
        field("config", 11, Object(&NODE_CONFIG_STATUS))
            .pointer()
            .doc("State of the configuration. Not used."),
        field("runtimeHandlers", 12, List(&Object(&NODE_RUNTIME_HANDLER)))
            .atomic()
            .doc("Handlers of the container runtime."),
        field("features", 13, Object(&NODE_FEATURES)).pointer().doc("Features of the container runtime."),
        field("declaredFeatures", 14, TEXTS).atomic().doc("Features of Kubernetes that the node supports."),
    ],
);

pub(crate) static NODE_CONDITION: Struct = structure(
    "io.k8s.api.core.v1.NodeCondition",
    "One condition of a node.",
    &[
        field("type", 1, Text).required().doc("Name of the condition, such as Ready."),
        field("status", 2, Text).required().doc("True, False or Unknown."),
        field("lastHeartbeatTime", 3, Time).doc("When it was last reported."),
        field("lastTransitionTime", 4, Time).doc("When the status last changed."),
        field("reason", 5, Text).doc("Reason of the last change, as one word."),
        field("message", 6, Text).doc("Description of the last change."),
    ],
);

pub(crate) static NODE_ADDRESS: Struct = structure(
    "io.k8s.api.core.v1.NodeAddress",
    "One address of a node.",
    &[
        field("type", 1, Text)
            .required()
            .doc("Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS."),
        field("address", 2, Text).required().doc("The address or name."),
    ],
);

pub(crate) static NODE_DAEMON_ENDPOINTS: Struct = structure(
    "io.k8s.api.core.v1.NodeDaemonEndpoints",
    "Ports of the daemons on a node.",
    &[field("kubeletEndpoint", 1, Object(&DAEMON_ENDPOINT)).doc("Port of the kubelet.")],
);

pub(crate) static DAEMON_ENDPOINT: Struct = structure(
    "io.k8s.api.core.v1.DaemonEndpoint",
    "The port of one daemon.",
    &[field("Port", 1, Int32).required().doc("Number of the port.")],
);

pub(crate) static NODE_SYSTEM_INFO: Struct = structure(
    "io.k8s.api.core.v1.NodeSystemInfo",
    "Versions and identities of a node.",
    &[
        field("machineID", 1, Text).required().doc("Identity of the installation."),
        field("systemUUID", 2, Text).required().doc("Identity of the machine."),
        field("bootID", 3, Text).required().doc("Identity of the boot."),
        field("kernelVersion", 4, Text).required().doc("Version of the kernel."),
        field("osImage", 5, Text).required().doc("Name of the operating system."),
        field("containerRuntimeVersion", 6, Text)
            .required()
            .doc("Name and version of the container runtime."),
        field("kubeletVersion", 7, Text).required().doc("Version of the kubelet."),
        field("kubeProxyVersion", 8, Text).required().doc("Not used."),
        field("operatingSystem", 9, Text).required().doc("Family of the operating system."),
        field("architecture", 10, Text).required().doc("Architecture of the processor."),
        field("swap", 11, Object(&NODE_SWAP_STATUS)).pointer().doc("Swap of the machine."),
    ],
);

pub(crate) static NODE_SWAP_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeSwapStatus",
    "Swap of a node.",
    &[field("capacity", 1, Int64).pointer().doc("Bytes of swap.")],
);

pub(crate) static CONTAINER_IMAGE: Struct = structure(
    "io.k8s.api.core.v1.ContainerImage",
    "A container image on a node.",
    &[
        field("names", 1, TEXTS).always().atomic().doc("Names of the image."),
        field("sizeBytes", 2, Int64).doc("Size in bytes."),
    ],
);

pub(crate) static ATTACHED_VOLUME: Struct = structure(
    "io.k8s.api.core.v1.AttachedVolume",
    "A volume that is attached to a node.",
    &[
        field("name", 1, Text).required().doc("Name of the volume."),
        field("devicePath", 2, Text).required().doc("Path of its device."),
    ],
);

pub(crate) static NODE_CONFIG_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeConfigStatus",
    "State of the configuration of a node. Not used.",
    &[
        field("assigned", 1, Object(&NODE_CONFIG_SOURCE))
            .pointer()
            .doc("Configuration that the node is to use."),
        field("active", 2, Object(&NODE_CONFIG_SOURCE)).pointer().doc("Configuration that the node uses."),
        field("lastKnownGood", 3, Object(&NODE_CONFIG_SOURCE))
            .pointer()
            .doc("Configuration that the node falls back to."),
        field("error", 4, Text).doc("Error of the configuration."),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandler",
    "A handler of the container runtime.",
    &[
        field("name", 1, Text).always().doc("Name of the handler; empty for the default handler."),
        field("features", 2, Object(&NODE_RUNTIME_HANDLER_FEATURES))
            .pointer()
            .doc("Features of the handler."),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandlerFeatures",
    "Features of a handler of the container runtime.",
    &[
        field("recursiveReadOnlyMounts", 1, Bool)
            .pointer()
            .doc("True if mounts can be read-only recursively."),
        field("userNamespaces", 2, Bool).pointer().doc("True if user namespaces are supported."),
    ],
);

pub(crate) static NODE_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeFeatures",
    "Features of a container runtime that do not depend on the handler.",
    &[field("supplementalGroupsPolicy", 1, Bool)
        .pointer()
        .doc("True if the policy for supplemental groups is supported.")],
);
