//! Tables that `iptables-nft-save` does not print, because another program has written rules into them that iptables does not
//! have, as `nft add rule ip filter INPUT ct state established accept` does. Instead of such a table it prints a comment, and
//! ends successfully. The other programs of iptables still work with the table.
//!
//! What a full load needs is found out in other ways: chains and their jumps over netlink, and single rules by `-C`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Once;

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, retry_on_change};
use portolan_wire::nftables::{NftablesEvent, request};

use super::{Error, Programs, Variant, base};
use crate::netlink::{jumps, wire_family};
use crate::rule::{Candidate, unprinted, words};

/// The beginning of the names of chains of this program, kube-proxy and kubelet.
const KUBERNETES: &str = "KUBE-";
/// The chain of packets to Services.
const SERVICES: &str = "KUBE-SERVICES";
/// Whether such a table was reported.
static REPORTED: Once = Once::new();

/// Returns true if the rules of a chain are read over netlink: those of chains of other programs, and those of `KUBE-SERVICES`,
/// which tell the modes apart.
fn is_read(chain: &str) -> bool {
    !chain.starts_with(KUBERNETES) || chain == SERVICES
}

impl Programs {
    /// Calls `line` for each line of a save of all tables. For a table that the save does not print, these are the comment that
    /// says so, and then lines for its chains, for the candidates that it has, and for other rules that lead to chains, without
    /// their conditions. Of chains of Kubernetes only those of `KUBE-SERVICES` are among the latter.
    pub fn save_all(&self, candidates: &[Candidate<'_>], mut line: impl FnMut(&str)) -> Result<(), Error> {
        let mut tables = BTreeSet::new();
        self.save(&[], |text| {
            tables.extend(unprinted(text).map(str::to_owned));
            line(text);
        })?;
        for table in tables.into_iter().filter(|_| self.variant == Variant::Nft) {
            REPORTED.call_once(|| {
                tracing::warn!(
                    table,
                    "iptables-save does not print this table, because it has rules of nftables that iptables does not have: \
                     its chains are read over netlink, and those of the iptables mode are written anew at each comparison; \
                     put these rules into a table of their own"
                );
            });
            for text in self.lines_of(&table, candidates)? {
                line(&text);
            }
        }
        Ok(())
    }

    fn lines_of(&self, table: &str, candidates: &[Candidate<'_>]) -> Result<Vec<String>, Error> {
        let jumps = self.jumps_of(table)?;
        let chains = jumps.keys().map(|chain| format!(":{chain} - [0:0]"));
        let mut lines: Vec<String> = [format!("*{table}")].into_iter().chain(chains).collect();
        let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for &(_, chain, rule) in
            candidates.iter().filter(|(of, chain, _)| *of == table && jumps.contains_key(*chain))
        {
            let to = rule.rsplit(' ').next().unwrap_or_default();
            let found = known.get(&(chain, to)).copied().unwrap_or_default();
            let all = || jumps.get(chain).map_or(0, |of| of.iter().filter(|name| *name == to).count());
            // `-C` fails at a rule that iptables does not have, unless it finds its own rule before that. So a jump is not asked
            // for if all that there are have been found.
            if is_read(chain) && jumps.contains_key(to) && found >= all() {
                continue;
            }
            if self.ask(["-C", chain, "-t", table].into_iter().chain(words(rule)))? {
                lines.push(format!("-A {chain} {rule}"));
                known.insert((chain, to), found.saturating_add(1));
            }
        }
        for (chain, to) in jumps.iter().flat_map(|(chain, to)| to.iter().map(move |to| (chain, to))) {
            if !known.contains_key(&(chain.as_str(), to.as_str())) {
                lines.push(format!("-A {chain} -j {to}"));
            }
        }
        Ok(lines)
    }

    /// Returns the chains of a table, each with the chains that its rules lead to, as far as its rules are read.
    fn jumps_of(&self, table: &str) -> Result<BTreeMap<String, Vec<String>>, Error> {
        let unreadable = |source| Error::Netlink { table: table.to_owned(), source };
        let is_v6 = self.name.starts_with(base(Family::Ipv6));
        let family = wire_family(if is_v6 { Family::Ipv6 } else { Family::Ipv4 });
        let mut socket = Socket::open(Protocol::Netfilter).map_err(unreadable)?;
        let read = retry_on_change(|| {
            let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
            socket.dump(&mut request::chains(family), |frame| {
                if let NftablesEvent::NewChain(chain) = NftablesEvent::decode(frame)?
                    && chain.family == family
                    && chain.table == table
                {
                    found.insert(chain.name, Vec::new());
                }
                Ok(())
            })?;
            for (chain, to) in found.iter_mut().filter(|(chain, _)| is_read(chain)) {
                to.extend(jumps(&mut socket, family, table, chain)?.into_iter().map(|(to, _)| to));
            }
            Ok(found)
        });
        read.map_err(unreadable)
    }
}
