//! The names of the chains that belong to one Service port or one endpoint.
//!
//! A name ends with the first 16 characters of the base32 of a SHA-256 over the Service port's name, its protocol
//! and, for an endpoint, its address. These are kube-proxy's names: tools and users recognize chains by them.

use std::fmt;

use ring::digest::{Context, SHA256};

/// The base32 alphabet of RFC 4648.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Number of characters of the hash in a name.
const LENGTH: usize = 16;

/// The purpose of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Chooses an endpoint of the cluster.
    Cluster,
    /// Chooses an endpoint of this node.
    Local,
    /// Traffic to a node port, an external IP or a load-balancer IP.
    External,
    /// Accepts sources that may use the load-balancer IPs.
    Firewall,
    /// One endpoint.
    Endpoint,
}

impl Kind {
    /// Every kind.
    const ALL: [Self; 5] = [Self::Cluster, Self::Local, Self::External, Self::Firewall, Self::Endpoint];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

/// Returns true if a chain of the nat table belongs to a Service port.
pub(super) fn is_of_service(chain: &str) -> bool {
    Kind::ALL.iter().any(|kind| chain.starts_with(kind.prefix()))
}

/// Returns the name in a declaration of a chain, such as `KUBE-SERVICES - [0:0]`. `None` if the name has a space: iptables accepts
/// none, but a program that writes to the kernel itself can create such a chain.
pub(super) fn declared(declaration: &str) -> Option<&str> {
    let mut words = declaration.split(' ');
    let name = words.next();
    name.filter(|_| words.count() <= 2)
}

/// The part of a name that differs between Service ports or endpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hash([u8; LENGTH]);

impl Hash {
    /// Returns the hash of the concatenated texts.
    pub(super) fn of(texts: &[&str]) -> Self {
        let mut context = Context::new(&SHA256);
        for text in texts {
            context.update(text.as_bytes());
        }
        let digest = context.finish();
        // 16 characters of 5 bits are the first 80 bits.
        let bits = digest.as_ref().iter().take(10).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let character = |index: usize| {
            let shift = 5 * (LENGTH - 1 - index);
            let value = (bits >> shift) & 31;
            usize::try_from(value).ok().and_then(|value| ALPHABET.get(value)).copied().unwrap_or(b'A')
        };
        Self(std::array::from_fn(character))
    }

    /// Parses the end of a chain's name. Returns `None` if it is not as long as a hash, or has other characters.
    fn parse(text: &str) -> Option<Self> {
        let characters: [u8; LENGTH] = text.as_bytes().try_into().ok()?;
        characters.iter().all(|character| ALPHABET.contains(character)).then_some(Self(characters))
    }

    /// Returns the name of the chain of this kind.
    pub(super) const fn chain(self, kind: Kind) -> ChainName {
        ChainName { kind, hash: self }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The name of a chain of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChainName {
    kind: Kind,
    hash: Hash,
}

impl ChainName {
    /// Parses a name. Returns `None` if no Service port can have a chain of this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Kind::ALL.into_iter().find_map(|kind| {
            let hash = Hash::parse(name.strip_prefix(kind.prefix())?)?;
            Some(hash.chain(kind))
        })
    }

    pub(super) const fn kind(self) -> Kind {
        self.kind
    }

    pub(super) const fn hash(self) -> Hash {
        self.hash
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_of_chains() {
        assert_eq!(declared("KUBE-SERVICES - [0:0]"), Some("KUBE-SERVICES"));
        assert_eq!(declared("INPUT ACCEPT [5:300]"), Some("INPUT"));
        assert_eq!(declared("INPUT"), Some("INPUT"));
        assert_eq!(declared("KUBE-SEP-A B - [0:0]"), None);
    }

    #[test]
    fn names_that_kube_proxy_gives() {
        for (texts, kind, expected) in [
            (&["demo/web:http", "tcp"][..], Kind::Cluster, "KUBE-SVC-XRY76EGRC3BSCIIJ"),
            (&["demo/edge:api", "tcp"], Kind::External, "KUBE-EXT-ERJE4GOKLZX5YEOG"),
            (&["demo/edge:api", "tcp"], Kind::Local, "KUBE-SVL-ERJE4GOKLZX5YEOG"),
            (&["demo/shop:https", "tcp"], Kind::Firewall, "KUBE-FW-6RPHUCFPUBGIVHOV"),
            (&["demo/dual", "sctp"], Kind::Cluster, "KUBE-SVC-C3N62DSJIEREFECB"),
            (&["ns1/svc1:p80", "tcp"], Kind::Cluster, "KUBE-SVC-XPGD46QRK7WJZT7O"),
            // A worked example that guides to kube-proxy's rules show.
            (&["default/httpservice:http", "tcp"], Kind::Cluster, "KUBE-SVC-PZZOH4GMXQXQLAH7"),
            (
                &["default/httpservice:http", "tcp", "192.168.178.7:8080"],
                Kind::Endpoint,
                "KUBE-SEP-SHRHPIF6JJVVZWAJ",
            ),
            (
                &["default/httpservice:http", "tcp", "192.168.178.8:8080"],
                Kind::Endpoint,
                "KUBE-SEP-RWO7TIJ7ZXLAS5CA",
            ),
            (
                &["default/httpservice:http", "tcp", "192.168.238.70:8080"],
                Kind::Endpoint,
                "KUBE-SEP-UDTT7ANR2HKPGI6N",
            ),
            (&["demo/web:http", "tcp", "10.180.0.11:8080"], Kind::Endpoint, "KUBE-SEP-6IU6CSKRWDLZL5LZ"),
            (&["demo/dual", "sctp", "[fd00:10:180::62]:9099"], Kind::Endpoint, "KUBE-SEP-QGVBNXXCLYOXPCXV"),
        ] {
            let name = Hash::of(texts).chain(kind);
            let chain = name.to_string();
            assert_eq!(chain, expected);
            assert_eq!(ChainName::parse(&chain), Some(name));
            assert!(is_of_service(&chain));
        }
        for other in
            ["KUBE-SERVICES", "KUBE-FIREWALL", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "PREROUTING"]
        {
            assert!(!is_of_service(other), "{other}");
            assert_eq!(ChainName::parse(other), None);
        }
        for other in ["KUBE-SVC-OLD", "KUBE-SVC-XRY76EGRC3BSCII1", "KUBE-SVC-XRY76EGRC3BSCIIJJ"] {
            assert!(is_of_service(other) && ChainName::parse(other).is_none(), "{other}");
        }
    }
}
