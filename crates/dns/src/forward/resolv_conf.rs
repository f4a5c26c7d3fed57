//! The servers of resolv.conf.

use std::net::{IpAddr, SocketAddr};

/// Port of DNS servers.
const PORT: u16 = 53;
/// Maximum number of servers that are used, as of resolvers that read all lines.
const MAX_SERVERS: usize = 15;

/// What resolv.conf says about servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    /// Servers in the order of the file, without duplicates.
    pub servers: Vec<SocketAddr>,
    /// Values of `nameserver` lines that cannot be used: no address, or an address with a zone.
    pub unusable: Vec<String>,
}

impl ResolvConf {
    /// Reads the text of resolv.conf. The addresses in `own` are left out: those at which this server listens, since it
    /// would ask itself.
    pub fn read(text: &str, own: &[IpAddr]) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some("nameserver"), Some(value)) = (words.next(), words.next()) else { continue };
            match value.parse::<IpAddr>() {
                Ok(address) => {
                    let server = SocketAddr::new(address, PORT);
                    let is_new = !own.contains(&address) && !found.servers.contains(&server);
                    if is_new && found.servers.len() < MAX_SERVERS {
                        found.servers.push(server);
                    }
                }
                Err(_) => found.unusable.push(value.to_owned()),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_in_order_without_own_addresses() {
        let text = "# nameserver 192.0.2.9\n; nameserver 192.0.2.8\nsearch a b\nnameserver 192.0.2.1 # a\n\
                    nameserver\t2001:db8::1\nnameserver 192.0.2.1\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\n\
                    nameserver\noptions ndots:5\n";
        let found = ResolvConf::read(text, &["10.96.0.10".parse().unwrap()]);
        let expected: Vec<SocketAddr> =
            ["192.0.2.1:53", "[2001:db8::1]:53"].map(|text| text.parse().unwrap()).into();
        assert_eq!(found.servers, expected);
        assert_eq!(found.unusable, ["fe80::1%eth0"]);
    }

    #[test]
    fn many_servers_are_limited() {
        let text = (0..40).map(|last| format!("nameserver 192.0.2.{last}")).collect::<Vec<_>>().join("\n");
        assert_eq!(ResolvConf::read(&text, &[]).servers.len(), MAX_SERVERS);
    }
}
