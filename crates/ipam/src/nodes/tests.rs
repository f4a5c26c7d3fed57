use proptest::prelude::*;

use super::*;

fn networks(addresses: &[u8]) -> NodeNetworks {
    let address = |last: &u8| IpAddr::from([192, 0, 2, *last]).into();
    NodeNetworks { addresses: addresses.iter().map(address).collect(), pods: Vec::new() }
}

proptest! {
    /// Each step replaces a Node, or removes it. The index is the same as one that is made of the rest at once.
    #[test]
    fn the_order_of_changes_leaves_no_trace(
        steps in prop::collection::vec((0_u8..4, prop::option::of(prop::collection::vec(0_u8..8, 0..4))), 0..40),
    ) {
        let (mut nodes, mut wanted) = (Nodes::default(), BTreeMap::new());
        for (name, addresses) in steps {
            let name = name.to_string();
            if let Some(addresses) = addresses {
                nodes.set(&name, networks(&addresses));
                wanted.insert(name, addresses);
            } else {
                nodes.remove(&name);
                wanted.remove(&name);
            }
        }
        let mut fresh = Nodes::default();
        for (name, addresses) in &wanted {
            fresh.set(name, networks(addresses));
        }
        prop_assert_eq!(&nodes, &fresh);
        let range = AddressRange::new("192.0.2.0/29".parse().unwrap()).unwrap();
        let inside: Vec<IpAddr> = (1..7)
            .filter(|last| wanted.values().any(|addresses| addresses.contains(last)))
            .map(|last| IpAddr::from([192, 0, 2, last]))
            .collect();
        prop_assert_eq!(nodes.addresses_in(range).collect::<Vec<_>>(), inside);
        for last in 0..8 {
            let is_listed = wanted.values().any(|addresses| addresses.contains(&last));
            prop_assert_eq!(nodes.has_address([192, 0, 2, last].into()), is_listed);
        }
    }
}
