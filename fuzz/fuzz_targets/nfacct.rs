//! Every message of nfacct.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;
use portolan_wire::nfacct::NfacctEvent;

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = NfacctEvent::decode(&frame);
    });
});
