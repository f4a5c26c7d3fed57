//! Every message of generic netlink: families, and those of IPVS.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::generic::GenericEvent;
use portolan_wire::{Frames, ipvs};

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = GenericEvent::decode(&frame);
        let _ = ipvs::IpvsEvent::decode(frame.header.kind, &frame);
    });
});
