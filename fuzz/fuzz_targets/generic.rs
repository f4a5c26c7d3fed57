//! Every message of generic netlink: families, and virtual servers of IPVS.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;
use portolan_wire::generic::Event;
use portolan_wire::ipvs::is_virtual_server;

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = Event::decode(&frame);
        let _ = is_virtual_server(frame.header.kind, &frame);
    });
});
