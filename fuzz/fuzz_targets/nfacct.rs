//! Every message of nfacct.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;
use portolan_wire::nfacct::Event;

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = Event::decode(&frame);
    });
});
