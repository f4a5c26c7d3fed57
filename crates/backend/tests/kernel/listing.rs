//! What `nft list table` shows.

use portolan_model::{Family, LocalDetector, NodePortAddresses, Settings};

use super::support::{collect, every_kind, in_namespace, ip, list, programmed, settings};

#[test]
fn nft_lists_every_kind_of_service() {
    for family in Family::BOTH {
        in_namespace(|| {
            let mut nftables = programmed(settings(family), &every_kind(family));
            let listing = list(family);
            println!("{listing}");
            collect(&mut nftables);
        });
    }
}
