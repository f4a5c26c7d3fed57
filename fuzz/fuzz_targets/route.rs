//! Every message of rtnetlink.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;
use portolan_wire::route::RouteEvent;
use portolan_wire::route::path::Path;
use portolan_wire::route::policy::{MarkRule, is_local_route};

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = RouteEvent::decode(&frame);
        let _ = MarkRule::decode(&frame);
        let _ = is_local_route(&frame, 2, 28_783);
        let _ = Path::decode(&frame);
    });
});
