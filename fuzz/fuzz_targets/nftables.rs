//! Every message of the nf_tables subsystem, including lists of elements.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_wire::Frames;
use portolan_wire::nftables::NftablesEvent;

fuzz_target!(|bytes: &[u8]| {
    for frame in Frames::new(bytes).map_while(Result::ok) {
        if let Ok(NftablesEvent::NewElements(list) | NftablesEvent::DeleteElements(list)) = NftablesEvent::decode(&frame) {
            list.elements().for_each(|element| {
                let _ = element;
            });
        }
    }
});
