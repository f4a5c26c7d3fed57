//! Acknowledgements with their extended attributes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;

fuzz_target!(|bytes: &[u8]| {
    Frames::new(bytes).map_while(Result::ok).for_each(|frame| {
        let _ = frame.acknowledgement();
    });
});
