//! Names of Service ports in the comments of rules.

use std::sync::Arc;

use portolan_model::{Protocol, ServicePortName};

use crate::name::Hash;
use crate::rule::lower_case;

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Splits a comment into the name of a Service port (`namespace/service:port`) and the text after it. Returns `None` if
/// it has no name.
pub(super) fn split(comment: &str) -> Option<(&str, &str)> {
    let name = comment.split(' ').find(|word| word.contains('/'))?;
    let (_, rest) = comment.split_once(name)?;
    Some((name, rest.trim_start()))
}

/// Parses the name of a Service port.
pub(super) fn name(text: &str, protocol: Protocol) -> Option<ServicePortName> {
    let (namespace, rest) = text.split_once('/')?;
    let (service, port) = rest.split_once(':').unwrap_or((rest, ""));
    let is_name = !namespace.is_empty() && !service.is_empty();
    let [namespace, service, port] = [namespace, service, port].map(Arc::from);
    is_name.then_some(ServicePortName { namespace, service, port, protocol })
}

/// Returns the Service port that a comment names, if chains with this hash are its chains.
pub(super) fn name_of(comment: &str, hash: Hash) -> Option<ServicePortName> {
    let (text, _) = split(comment)?;
    let protocol = PROTOCOLS.into_iter().find(|protocol| hash_of(text, *protocol) == hash)?;
    name(text, protocol)
}

/// Returns the hash in the names of the chains of a Service port.
pub(super) fn hash_of(name: &str, protocol: Protocol) -> Hash {
    Hash::of(&[name, lower_case(protocol)])
}
