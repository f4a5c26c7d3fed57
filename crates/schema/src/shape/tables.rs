//! The tables of each kind, one file for each family of types. Source: the API types of Kubernetes v1.36 (`core/v1`,
//! `discovery/v1`, `networking/v1`, `events/v1`, `coordination/v1`, `authorization/v1`, `authentication/v1`).

mod endpoints;
mod event;
mod internal;
mod lease;
mod namespace;
mod network;
mod node;
mod pod;
mod review;
mod service;

use super::{
    Struct,
    Type::{List, Object},
    field,
    meta::{API_VERSION, KIND, LIST_META},
    structure,
};
use crate::resource::Resource;

/// Returns the table of a resource's objects.
pub(super) const fn of(resource: Resource) -> &'static Struct {
    match resource {
        Resource::Service => &service::SERVICE,
        Resource::Node => &node::NODE,
        Resource::Namespace => &namespace::NAMESPACE,
        Resource::EndpointSlice => &endpoints::ENDPOINT_SLICE,
        Resource::ServiceCidr => &network::SERVICE_CIDR,
        Resource::Event => &event::EVENT,
        Resource::CoreEvent => &event::CORE_EVENT,
        Resource::Endpoints => &endpoints::ENDPOINTS,
        Resource::IpAddress => &network::IP_ADDRESS,
        Resource::Lease => &lease::LEASE,
        Resource::NodePort => &internal::NODE_PORT,
        Resource::Pod => &pod::POD,
        Resource::AccessReview => &review::ACCESS_REVIEW,
        Resource::RulesReview => &review::RULES_REVIEW,
        Resource::SelfReview => &review::SELF_REVIEW,
    }
}

/// Returns the table of a list of a resource's objects.
pub(super) const fn list_of(resource: Resource) -> &'static Struct {
    match resource {
        Resource::Service => &SERVICE_LIST,
        Resource::Node => &NODE_LIST,
        Resource::Namespace => &NAMESPACE_LIST,
        Resource::EndpointSlice => &ENDPOINT_SLICE_LIST,
        Resource::ServiceCidr => &SERVICE_CIDR_LIST,
        Resource::Event => &EVENT_LIST,
        Resource::CoreEvent => &CORE_EVENT_LIST,
        Resource::Endpoints => &ENDPOINTS_LIST,
        Resource::IpAddress => &IP_ADDRESS_LIST,
        Resource::Lease => &LEASE_LIST,
        Resource::NodePort => &NODE_PORT_LIST,
        Resource::Pod => &POD_LIST,
        Resource::AccessReview => &ACCESS_REVIEW_LIST,
        Resource::RulesReview => &RULES_REVIEW_LIST,
        Resource::SelfReview => &SELF_REVIEW_LIST,
    }
}

macro_rules! lists {
    ($($list:ident = $name:literal of $item:path;)*) => {
        $(static $list: Struct = structure($name, "A list of objects of one kind.", &[
            API_VERSION,
            KIND,
            field("metadata", 1, Object(&LIST_META)).doc("Metadata of the list."),
            field("items", 2, List(&Object(&$item))).doc("The objects.").required(),
        ]);)*
    };
}

lists! {
    SERVICE_LIST = "io.k8s.api.core.v1.ServiceList" of service::SERVICE;
    NODE_LIST = "io.k8s.api.core.v1.NodeList" of node::NODE;
    NAMESPACE_LIST = "io.k8s.api.core.v1.NamespaceList" of namespace::NAMESPACE;
    ENDPOINT_SLICE_LIST = "io.k8s.api.discovery.v1.EndpointSliceList" of endpoints::ENDPOINT_SLICE;
    SERVICE_CIDR_LIST = "io.k8s.api.networking.v1.ServiceCIDRList" of network::SERVICE_CIDR;
    EVENT_LIST = "io.k8s.api.events.v1.EventList" of event::EVENT;
    CORE_EVENT_LIST = "io.k8s.api.core.v1.EventList" of event::CORE_EVENT;
    ENDPOINTS_LIST = "io.k8s.api.core.v1.EndpointsList" of endpoints::ENDPOINTS;
    IP_ADDRESS_LIST = "io.k8s.api.networking.v1.IPAddressList" of network::IP_ADDRESS;
    LEASE_LIST = "io.k8s.api.coordination.v1.LeaseList" of lease::LEASE;
    NODE_PORT_LIST = "portolan.internal.v1.NodePortList" of internal::NODE_PORT;
    POD_LIST = "io.k8s.api.core.v1.PodList" of pod::POD;
    // No request returns a list of questions.
    ACCESS_REVIEW_LIST = "portolan.internal.v1.SelfSubjectAccessReviewList" of review::ACCESS_REVIEW;
    RULES_REVIEW_LIST = "portolan.internal.v1.SelfSubjectRulesReviewList" of review::RULES_REVIEW;
    SELF_REVIEW_LIST = "portolan.internal.v1.SelfSubjectReviewList" of review::SELF_REVIEW;
}
