//! Authentication and authorization: certificates, tokens, roles.
//!
//! Owns the files below the folder `pki`, the TLS configuration made from them, the identity behind a connection or a
//! token, and the decision whether that identity may do what a request asks for.
//!
//! In: files, certificates and tokens of clients, attributes of requests. Out: the TLS configuration, an identity,
//! allowed or forbidden.
//!
//! Must not know: sockets, HTTP answers, objects.

mod authentication;
mod authorization;
mod certificate;
mod kubeconfig;
mod names;
mod peer;
mod pki;
mod stamp;
mod tls;
mod tokens;

pub(crate) use authentication::{Unauthorized, bearer};
pub use authorization::Role;
pub(crate) use authorization::{Identity, forbidden_message};
pub use kubeconfig::Kubeconfig;
pub use names::server_names;
pub(crate) use peer::Peer;
pub use pki::{ClientFiles, Pki};
pub(crate) use tls::Security;
pub use tls::{SecurityError, TlsSettings};
pub use tokens::ProcessToken;
