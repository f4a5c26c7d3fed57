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
        field("spec", 2, Object(&NODE_SPEC)).doc("What others decide about the node."),
        field("status", 3, Object(&NODE_STATUS)).doc("What the node reports."),
    ],
);

pub(crate) static NODE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.NodeSpec",
    "What others decide about a node.",
    &[
        field("podCIDR", 1, Text).doc("The first of podCIDRs."),
        field("podCIDRs", 7, TEXTS)
            .merged_set()
            .doc("Ranges of pod addresses on the node, at most one of each family."),
        field("providerID", 3, Text).doc("Name of the machine at its provider."),
        field("unschedulable", 4, Bool).doc("Whether new pods keep away."),
        field("taints", 5, List(&Object(&TAINT))).atomic().doc("What keeps pods away."),
        field("configSource", 6, Object(&NODE_CONFIG_SOURCE)).pointer().doc("No longer used."),
        field("externalID", 2, Text).doc("No longer used."),
    ],
);

pub(crate) static TAINT: Struct = structure(
    "io.k8s.api.core.v1.Taint",
    "What keeps pods away from a node unless they tolerate it.",
    &[
        field("key", 1, Text).required().doc("Name of the taint."),
        field("value", 2, Text).doc("Value of the taint."),
        field("effect", 3, Text).required().doc("NoSchedule, PreferNoSchedule or NoExecute."),
        field("timeAdded", 4, Time).pointer().doc("When it was added."),
    ],
);

pub(crate) static NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.NodeConfigSource",
    "Where a node takes its configuration from; no longer used.",
    &[field("configMap", 2, Object(&CONFIG_MAP_NODE_CONFIG_SOURCE))
        .pointer()
        .doc("A ConfigMap with the configuration.")],
);

pub(crate) static CONFIG_MAP_NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.ConfigMapNodeConfigSource",
    "A ConfigMap with the configuration of a node; no longer used.",
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
    "What a node reports about itself.",
    &[
        field("capacity", 1, Map(&Quantity)).doc("All that the machine has."),
        field("allocatable", 2, Map(&Quantity)).doc("What of it pods may use."),
        field("phase", 3, Text).doc("No longer used."),
        field("conditions", 4, List(&Object(&NODE_CONDITION)))
            .keyed(&["type"])
            .doc("Aspects of the state of the node."),
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
            .doc("State of the configuration; no longer used."),
        field("runtimeHandlers", 12, List(&Object(&NODE_RUNTIME_HANDLER)))
            .atomic()
            .doc("Handlers of the container runtime."),
        field("features", 13, Object(&NODE_FEATURES)).pointer().doc("Features of the container runtime."),
        field("declaredFeatures", 14, TEXTS).atomic().doc("Features of Kubernetes that the node has."),
    ],
);

pub(crate) static NODE_CONDITION: Struct = structure(
    "io.k8s.api.core.v1.NodeCondition",
    "One aspect of the state of a node.",
    &[
        field("type", 1, Text).required().doc("Name of the aspect."),
        field("status", 2, Text).required().doc("True, False or Unknown."),
        field("lastHeartbeatTime", 3, Time).doc("When it was last reported."),
        field("lastTransitionTime", 4, Time).doc("When the status last changed."),
        field("reason", 5, Text).doc("Why, in one word for programs."),
        field("message", 6, Text).doc("Why, in a sentence for people."),
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
        field("kubeProxyVersion", 8, Text).required().doc("No longer filled with truth."),
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
    "State of the configuration of a node; no longer used.",
    &[
        field("assigned", 1, Object(&NODE_CONFIG_SOURCE))
            .pointer()
            .doc("Configuration that the node is to use."),
        field("active", 2, Object(&NODE_CONFIG_SOURCE)).pointer().doc("Configuration that the node uses."),
        field("lastKnownGood", 3, Object(&NODE_CONFIG_SOURCE))
            .pointer()
            .doc("Configuration that the node falls back to."),
        field("error", 4, Text).doc("What went wrong."),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandler",
    "A handler of the container runtime.",
    &[
        field("name", 1, Text).always().doc("Name of the handler; empty for the default."),
        field("features", 2, Object(&NODE_RUNTIME_HANDLER_FEATURES)).pointer().doc("What it can do."),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandlerFeatures",
    "What a handler of the container runtime can do.",
    &[
        field("recursiveReadOnlyMounts", 1, Bool)
            .pointer()
            .doc("Whether it makes mounts read-only recursively."),
        field("userNamespaces", 2, Bool).pointer().doc("Whether it has user namespaces."),
    ],
);

pub(crate) static NODE_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeFeatures",
    "What a container runtime can do, whatever the handler.",
    &[field("supplementalGroupsPolicy", 1, Bool)
        .pointer()
        .doc("Whether it follows the policy for supplemental groups.")],
);
