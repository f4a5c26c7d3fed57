//! Who may do what: certificates, tokens, roles.
//!
//! Owns: the files below the folder `pki`, the TLS set-up made from them, who a connection or a token speaks for, and
//! the decision whether that one may do what it asks for.
//!
//! Flows in: files, certificates and tokens of clients, what requests ask for. Flows
//! out: what TLS needs, an identity, a yes or no.
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

pub use authorization::Role;
pub use kubeconfig::Kubeconfig;
pub use names::server_names;
pub use pki::{ClientFiles, Pki};
pub use tls::{SecurityError, TlsSettings};

pub(crate) use authentication::Unauthorized;
pub(crate) use authorization::{Identity, forbidden_message};
pub(crate) use peer::Peer;
pub(crate) use tls::Security;
