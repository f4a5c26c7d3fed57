//! Who may do what: certificates, tokens, roles.
//!
//! Owns: the files below the folder `pki`, the TLS set-up made from them, who a connection or a token speaks for, and
//! the decision whether that one may do what it asks for.
//!
//! Flows in: files, certificates and tokens of clients, [`Attributes`](crate::http::Attributes) of requests. Flows
//! out: what TLS needs, an [`Identity`], a yes or no.
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

pub(crate) use authorization::forbidden_message;
pub(crate) use peer::Peer;
pub(crate) use tls::Security;
