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
        field("metadata", 1, Object(&OBJECT_META), "Standard metadata."),
        field("spec", 2, Object(&NODE_SPEC), "What others decide about the node."),
        field("status", 3, Object(&NODE_STATUS), "What the node reports."),
    ],
);

pub(crate) static NODE_SPEC: Struct = structure(
    "io.k8s.api.core.v1.NodeSpec",
    "What others decide about a node.",
    &[
        field("podCIDR", 1, Text, "The first of podCIDRs."),
        field("podCIDRs", 7, TEXTS, "Ranges of pod addresses on the node, at most one of each family.")
            .merged_set(),
        field("providerID", 3, Text, "Name of the machine at its provider."),
        field("unschedulable", 4, Bool, "Whether new pods keep away."),
        field("taints", 5, List(&Object(&TAINT)), "What keeps pods away.").atomic(),
        field("configSource", 6, Object(&NODE_CONFIG_SOURCE), "No longer used.").pointer(),
        field("externalID", 2, Text, "No longer used."),
    ],
);

pub(crate) static TAINT: Struct = structure(
    "io.k8s.api.core.v1.Taint",
    "What keeps pods away from a node unless they tolerate it.",
    &[
        field("key", 1, Text, "Name of the taint.").required(),
        field("value", 2, Text, "Value of the taint."),
        field("effect", 3, Text, "NoSchedule, PreferNoSchedule or NoExecute.").required(),
        field("timeAdded", 4, Time, "When it was added.").pointer(),
    ],
);

pub(crate) static NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.NodeConfigSource",
    "Where a node takes its configuration from; no longer used.",
    &[field("configMap", 2, Object(&CONFIG_MAP_NODE_CONFIG_SOURCE), "A ConfigMap with the configuration.")
        .pointer()],
);

pub(crate) static CONFIG_MAP_NODE_CONFIG_SOURCE: Struct = structure(
    "io.k8s.api.core.v1.ConfigMapNodeConfigSource",
    "A ConfigMap with the configuration of a node; no longer used.",
    &[
        field("namespace", 1, Text, "Namespace of the ConfigMap.").required(),
        field("name", 2, Text, "Name of the ConfigMap.").required(),
        field("uid", 3, Text, "Identity of the ConfigMap."),
        field("resourceVersion", 4, Text, "Version of the ConfigMap."),
        field("kubeletConfigKey", 5, Text, "Key within the ConfigMap.").required(),
    ],
);

pub(crate) static NODE_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeStatus",
    "What a node reports about itself.",
    &[
        field("capacity", 1, Map(&Quantity), "All that the machine has."),
        field("allocatable", 2, Map(&Quantity), "What of it pods may use."),
        field("phase", 3, Text, "No longer used."),
        field("conditions", 4, List(&Object(&NODE_CONDITION)), "Aspects of the state of the node.")
            .keyed(&["type"]),
        field(
            "addresses",
            5,
            List(&Object(&NODE_ADDRESS)),
            "Addresses and names at which the node is reached.",
        )
        .keyed(&["type"]),
        field("daemonEndpoints", 6, Object(&NODE_DAEMON_ENDPOINTS), "Ports of the daemons on the node."),
        field("nodeInfo", 7, Object(&NODE_SYSTEM_INFO), "Versions and identities of the node."),
        field("images", 8, List(&Object(&CONTAINER_IMAGE)), "Container images on the node.").atomic(),
        field("volumesInUse", 9, TEXTS, "Volumes that the node uses.").atomic(),
        field(
            "volumesAttached",
            10,
            List(&Object(&ATTACHED_VOLUME)),
            "Volumes that are attached to the node.",
        )
        .atomic(),
        field("config", 11, Object(&NODE_CONFIG_STATUS), "State of the configuration; no longer used.")
            .pointer(),
        field(
            "runtimeHandlers",
            12,
            List(&Object(&NODE_RUNTIME_HANDLER)),
            "Handlers of the container runtime.",
        )
        .atomic(),
        field("features", 13, Object(&NODE_FEATURES), "Features of the container runtime.").pointer(),
        field("declaredFeatures", 14, TEXTS, "Features of Kubernetes that the node has.").atomic(),
    ],
);

pub(crate) static NODE_CONDITION: Struct = structure(
    "io.k8s.api.core.v1.NodeCondition",
    "One aspect of the state of a node.",
    &[
        field("type", 1, Text, "Name of the aspect.").required(),
        field("status", 2, Text, "True, False or Unknown.").required(),
        field("lastHeartbeatTime", 3, Time, "When it was last reported."),
        field("lastTransitionTime", 4, Time, "When the status last changed."),
        field("reason", 5, Text, "Why, in one word for programs."),
        field("message", 6, Text, "Why, in a sentence for people."),
    ],
);

pub(crate) static NODE_ADDRESS: Struct = structure(
    "io.k8s.api.core.v1.NodeAddress",
    "One address of a node.",
    &[
        field("type", 1, Text, "Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS.").required(),
        field("address", 2, Text, "The address or name.").required(),
    ],
);

pub(crate) static NODE_DAEMON_ENDPOINTS: Struct = structure(
    "io.k8s.api.core.v1.NodeDaemonEndpoints",
    "Ports of the daemons on a node.",
    &[field("kubeletEndpoint", 1, Object(&DAEMON_ENDPOINT), "Port of the kubelet.")],
);

pub(crate) static DAEMON_ENDPOINT: Struct = structure(
    "io.k8s.api.core.v1.DaemonEndpoint",
    "The port of one daemon.",
    &[field("Port", 1, Int32, "Number of the port.").required()],
);

pub(crate) static NODE_SYSTEM_INFO: Struct = structure(
    "io.k8s.api.core.v1.NodeSystemInfo",
    "Versions and identities of a node.",
    &[
        field("machineID", 1, Text, "Identity of the installation.").required(),
        field("systemUUID", 2, Text, "Identity of the machine.").required(),
        field("bootID", 3, Text, "Identity of the boot.").required(),
        field("kernelVersion", 4, Text, "Version of the kernel.").required(),
        field("osImage", 5, Text, "Name of the operating system.").required(),
        field("containerRuntimeVersion", 6, Text, "Name and version of the container runtime.").required(),
        field("kubeletVersion", 7, Text, "Version of the kubelet.").required(),
        field("kubeProxyVersion", 8, Text, "No longer filled with truth.").required(),
        field("operatingSystem", 9, Text, "Family of the operating system.").required(),
        field("architecture", 10, Text, "Architecture of the processor.").required(),
        field("swap", 11, Object(&NODE_SWAP_STATUS), "Swap of the machine.").pointer(),
    ],
);

pub(crate) static NODE_SWAP_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeSwapStatus",
    "Swap of a node.",
    &[field("capacity", 1, Int64, "Bytes of swap.").pointer()],
);

pub(crate) static CONTAINER_IMAGE: Struct = structure(
    "io.k8s.api.core.v1.ContainerImage",
    "A container image on a node.",
    &[
        field("names", 1, TEXTS, "Names of the image.").always().atomic(),
        field("sizeBytes", 2, Int64, "Size in bytes."),
    ],
);

pub(crate) static ATTACHED_VOLUME: Struct = structure(
    "io.k8s.api.core.v1.AttachedVolume",
    "A volume that is attached to a node.",
    &[
        field("name", 1, Text, "Name of the volume.").required(),
        field("devicePath", 2, Text, "Path of its device.").required(),
    ],
);

pub(crate) static NODE_CONFIG_STATUS: Struct = structure(
    "io.k8s.api.core.v1.NodeConfigStatus",
    "State of the configuration of a node; no longer used.",
    &[
        field("assigned", 1, Object(&NODE_CONFIG_SOURCE), "Configuration that the node is to use.").pointer(),
        field("active", 2, Object(&NODE_CONFIG_SOURCE), "Configuration that the node uses.").pointer(),
        field("lastKnownGood", 3, Object(&NODE_CONFIG_SOURCE), "Configuration that the node falls back to.")
            .pointer(),
        field("error", 4, Text, "What went wrong."),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandler",
    "A handler of the container runtime.",
    &[
        field("name", 1, Text, "Name of the handler; empty for the default.").always(),
        field("features", 2, Object(&NODE_RUNTIME_HANDLER_FEATURES), "What it can do.").pointer(),
    ],
);

pub(crate) static NODE_RUNTIME_HANDLER_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeRuntimeHandlerFeatures",
    "What a handler of the container runtime can do.",
    &[
        field("recursiveReadOnlyMounts", 1, Bool, "Whether it makes mounts read-only recursively.").pointer(),
        field("userNamespaces", 2, Bool, "Whether it has user namespaces.").pointer(),
    ],
);

pub(crate) static NODE_FEATURES: Struct = structure(
    "io.k8s.api.core.v1.NodeFeatures",
    "What a container runtime can do, whatever the handler.",
    &[field("supplementalGroupsPolicy", 1, Bool, "Whether it follows the policy for supplemental groups.")
        .pointer()],
);
