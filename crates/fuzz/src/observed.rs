//! What the modes nftables, iptables and IPVS read of the kernel. Any rules are described in terms of Services, without a panic.
//!
//! Choices edit what Portolan or kube-proxy writes. Other inputs are read as they are.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use portolan_engine::table::Table;
use portolan_iptables::{IptablesOptions, Redirect};
use portolan_model::observed::Observed;
use portolan_model::table::Entry;
use portolan_model::{Family, Settings};
use portolan_nftables::Listeners;

use crate::script::Script;
use crate::{edits, worlds};

/// Bytes of the header of each message of `nf_tables` and ipset (`struct nfgenmsg`). The header of messages of generic netlink is
/// as long (`struct genlmsghdr`).
pub(crate) const NFNETLINK_HEADER: usize = 4;
/// Bytes of `struct ifaddrmsg`, and the type of the messages with it.
const ADDRESS_HEADER: usize = 8;
const RTM_NEWADDR: u16 = 20;
/// Bytes that choose edits of the rules of the IPVS mode; the others choose edits of messages.
const IPVS_RULES: usize = 48;
/// The addresses of the node in the IPVS mode.
const NODE: [&str; 3] = ["192.0.2.1", "10.244.0.9", "2001:db8::9"];

/// Compares what was read with the table for which it was written, and with one without Services.
fn describe(observed: &Observed, table: &Table) {
    let wanted: Vec<Entry> = table.iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect();
    for wanted in [&wanted[..], &[]] {
        for difference in observed.difference(wanted) {
            assert!(!difference.to_string().is_empty());
        }
    }
}

fn without_services(family: Family) -> Table {
    Table::new(Settings::plain(family))
}

/// The output of `iptables-save`.
pub(crate) fn iptables(bytes: &[u8]) {
    let Some(mut script) = Script::of(bytes) else {
        let text = String::from_utf8_lossy(bytes);
        for family in Family::BOTH {
            let table = without_services(family);
            if let Some(observed) = portolan_iptables::fuzzing::observe(&table, &text) {
                describe(&observed, &table);
            }
        }
        return;
    };
    let (table, save) = if script.below(4) == 0 {
        (without_services(Family::Ipv4), portolan_iptables::fuzzing::KUBE_PROXY.to_owned())
    } else {
        let table = worlds::table(&mut script);
        let save = portolan_iptables::fuzzing::save(&table, iptables_options(&mut script));
        (table, save)
    };
    let save = edits::lines(&save, &mut script);
    if let Some(observed) = portolan_iptables::fuzzing::observe(&table, &save) {
        describe(&observed, &table);
    }
    if let Err(reason) = portolan_iptables::fuzzing::mend(&table, &save) {
        panic!("one load does not mend the rules:\n{reason}");
    }
}

fn iptables_options(script: &mut Script<'_>) -> IptablesOptions {
    let redirect = Redirect { own_mark: 1 << 15, ports: (4096, 4607) };
    IptablesOptions {
        localhost_node_ports: script.flag(),
        loopback_addresses: if script.flag() { vec![Ipv4Addr::LOCALHOST.into()] } else { Vec::new() },
        drop_invalid: script.flag(),
        redirect: script.flag().then_some(redirect),
        ..IptablesOptions::default()
    }
}

/// Messages of IPVS, ipset and rtnetlink, then the output of `iptables-save`.
pub(crate) fn ipvs(bytes: &[u8]) {
    let exclude = IpNet::from(Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 31));
    let observe = |table: &Table, bytes: &[u8]| {
        for observed in portolan_ipvs::fuzzing::observe(table.family(), bytes, &[exclude]) {
            describe(&observed, table);
        }
    };
    let Some(mut script) = Script::of(bytes) else {
        for family in Family::BOTH {
            observe(&without_services(family), bytes);
        }
        return;
    };
    let table = worlds::table(&mut script);
    let (messages, rules) = ipvs_listing(&table);
    let rules = edits::lines(&rules, &mut Script::new(script.bytes(IPVS_RULES)));
    let messages = edits::frames(&messages, header_of, &mut script);
    observe(&table, &[&messages, &b"\n"[..], rules.as_bytes()].concat());
}

/// Returns what a kernel lists in which this table was written, and the rules.
pub(crate) fn ipvs_listing(table: &Table) -> (Vec<u8>, String) {
    portolan_ipvs::fuzzing::written(table, &NODE.map(|text| text.parse().unwrap()))
}

/// Returns the bytes of the header of a message of ipset, IPVS or rtnetlink.
pub(crate) fn header_of(kind: u16) -> usize {
    if kind == RTM_NEWADDR { ADDRESS_HEADER } else { NFNETLINK_HEADER }
}

/// Messages of `nf_tables`, as tables of Portolan and of kube-proxy. Portolan's are also compared with the table that is wanted.
pub(crate) fn nftables(bytes: &[u8]) {
    let observe = |table: &Table, capture, bytes: &[u8]| {
        for observed in portolan_nftables::fuzzing::observe(table.family(), bytes) {
            describe(&observed, table);
        }
        if let Err(reason) = portolan_nftables::fuzzing::mend(table, capture, bytes) {
            panic!("one comparison does not mend the table:\n{reason}");
        }
    };
    let Some(mut script) = Script::of(bytes) else {
        for family in Family::BOTH {
            observe(&without_services(family), None, bytes);
        }
        return;
    };
    let (table, capture, messages) = nftables_listing(&mut script);
    observe(&table, capture, &edits::frames(&messages, |_| NFNETLINK_HEADER, &mut script));
}

/// Returns what a kernel lists, and the table that is wanted.
pub(crate) fn nftables_listing(script: &mut Script<'_>) -> (Table, Option<Listeners>, Vec<u8>) {
    match script.below(4) {
        0 => {
            let family = script.pick(&Family::BOTH);
            (without_services(family), None, portolan_nftables::fuzzing::kube_proxy(family).to_vec())
        }
        choice => {
            let table = worlds::table(script);
            let capture = (choice == 1).then(|| listeners(table.family()));
            let messages = portolan_nftables::fuzzing::written(&table, capture);
            (table, capture, messages)
        }
    }
}

/// The elements that a run of the nftables mode saves for the next one.
pub(crate) fn saved_elements(bytes: &[u8]) {
    let read = |family, file: &[u8]| {
        let read = portolan_nftables::fuzzing::read_saved_elements(family, file);
        // Each element is at least a number, a key and its data.
        assert!(read.is_none_or(|count| count * 3 <= file.len()));
        read
    };
    let Some(mut script) = Script::of(bytes) else {
        for family in Family::BOTH {
            read(family, bytes);
        }
        return;
    };
    let table = worlds::table(&mut script);
    let (file, count) = portolan_nftables::fuzzing::saved_elements(&table);
    let mut edited = file.clone();
    edits::bytes(&mut edited, &mut script);
    let read = read(table.family(), &edited);
    assert!(edited != file || read == Some(count));
}

fn listeners(family: Family) -> Listeners {
    let [cluster, local] = match family {
        Family::Ipv4 => ["127.0.0.1:1", "127.0.0.1:2"],
        Family::Ipv6 => ["[::1]:1", "[::1]:2"],
    };
    Listeners { cluster: cluster.parse().unwrap(), local: local.parse().unwrap() }
}

#[cfg(test)]
mod tests {
    use portolan_iptables::fuzzing::Mended as iptables;
    use portolan_nftables::fuzzing::Mended as nftables;

    use super::*;

    /// The worlds that an input without edits leads to, from several seeds.
    fn tables() -> impl Iterator<Item = Table> {
        (0..32u8).map(|seed| worlds::table(&mut Script::new(&[seed, 1, 1, 0, 1, 1, 0, seed, seed, 3])))
    }

    fn assert_reads(table: &Table, observed: &Observed) {
        let wanted: Vec<_> = table.iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect();
        let differences: Vec<String> = observed.difference(&wanted).iter().map(ToString::to_string).collect();
        assert_eq!(differences, [""; 0]);
    }

    #[test]
    fn tables_without_edits_are_read() {
        let (mut ports, mut saved) = (0, 0);
        for table in tables() {
            let messages = portolan_nftables::fuzzing::written(&table, None);
            let edited = edits::frames(&messages, |_| NFNETLINK_HEADER, &mut Script::new(&[]));
            assert_eq!(edited, messages);
            let [observed, ..] = portolan_nftables::fuzzing::observe(table.family(), &messages);
            assert_reads(&table, &observed);
            ports += observed.ports.len();
            assert_eq!(portolan_nftables::fuzzing::mend(&table, None, &messages), Ok(nftables::Nothing));
            let (file, count) = portolan_nftables::fuzzing::saved_elements(&table);
            let read = portolan_nftables::fuzzing::read_saved_elements(table.family(), &file);
            assert_eq!(read, Some(count));
            saved += count;

            let capture = Some(listeners(table.family()));
            let messages = portolan_nftables::fuzzing::written(&table, capture);
            let [_, captured, _] = portolan_nftables::fuzzing::observe(table.family(), &messages);
            assert_eq!(captured.ports.len(), observed.ports.len());
            assert_eq!(portolan_nftables::fuzzing::mend(&table, capture, &messages), Ok(nftables::Nothing));

            let (messages, rules) = ipvs_listing(&table);
            assert_eq!(edits::frames(&messages, header_of, &mut Script::new(&[])), messages);
            let listing = [&messages, &b"\n"[..], rules.as_bytes()].concat();
            let [observed, _] = portolan_ipvs::fuzzing::observe(table.family(), &listing, &[]);
            assert_reads(&table, &observed);

            let save = portolan_iptables::fuzzing::save(&table, IptablesOptions::default());
            assert_eq!(edits::lines(&save, &mut Script::new(&[])), save);
            assert_reads(&table, &portolan_iptables::fuzzing::observe(&table, &save).expect("rules"));
        }
        assert!(ports > 30 && saved > 30, "{ports} {saved}");
    }

    #[test]
    fn what_others_change_is_mended() {
        let (mut tables, mut rules) = (Vec::new(), Vec::new());
        for seed in 0..128 {
            let bytes = crate::script::random(seed, 32);
            let mut script = Script::new(&bytes[1..]);
            let (table, capture, messages) = nftables_listing(&mut script);
            let messages = edits::frames(&messages, |_| NFNETLINK_HEADER, &mut script);
            tables
                .push(portolan_nftables::fuzzing::mend(&table, capture, &messages).expect("all is written"));

            let table = worlds::table(&mut Script::new(&bytes[1..]));
            let save = portolan_iptables::fuzzing::save(&table, IptablesOptions::default());
            let save = edits::lines(&save, &mut Script::new(&bytes[20..26]));
            rules.push(portolan_iptables::fuzzing::mend(&table, &save).expect("all is written"));
        }
        let mended = tables.iter().filter(|mended| **mended == nftables::Something).count();
        assert!(mended > 32, "{mended}");
        let mended = rules.iter().filter(|mended| **mended == iptables::Something).count();
        assert!(mended > 16, "{mended}");
    }

    #[test]
    fn rules_of_kube_proxy_without_edits_are_read() {
        let table = Table::new(Settings::plain(Family::Ipv4));
        let observed = portolan_iptables::fuzzing::observe(&table, portolan_iptables::fuzzing::KUBE_PROXY);
        assert!(observed.expect("rules").ports.len() > 3);
        for family in Family::BOTH {
            let messages = portolan_nftables::fuzzing::kube_proxy(family);
            let [.., observed] = portolan_nftables::fuzzing::observe(family, messages);
            assert!(observed.ports.len() > 1, "{family}");
        }
    }
}
