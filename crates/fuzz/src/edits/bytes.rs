//! Edits of bytes with a form of their own.

use super::MOST;
use crate::script::Script;

/// The most bytes of one edit.
const LONGEST: usize = 32;

/// Edits bytes until the script is over.
pub(crate) fn edit(bytes: &mut Vec<u8>, script: &mut Script<'_>) {
    for _ in 0..MOST {
        if script.is_over() || bytes.is_empty() {
            break;
        }
        let at = script.below(bytes.len());
        let end = bytes.len().min(at + script.below(LONGEST) + 1);
        match script.below(5) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let copy = bytes[at..end].to_vec();
                let to = script.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            2 => drop(bytes.splice(at..at, script.bytes(LONGEST).iter().copied())),
            3 => bytes.truncate(at),
            _ => bytes[at] = script.byte(),
        }
    }
}
