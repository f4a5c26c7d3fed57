//! The data of a `RangeAllocation` (core/v1), in which upstream stores node ports, and older versions cluster IPs: a
//! big-endian number whose bit i stands for offset i, without leading zero bytes.

use thiserror::Error;

use crate::bitmap::Bitmap;

/// The reason why a record does not belong to the configured range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The record is of another range.
    #[error("the stored record is of range {stored}, not of {ours}; repair writes it anew")]
    OtherRange {
        /// The record's `range`.
        stored: String,
        /// The configured range.
        ours: String,
    },
    /// The record has a bit beyond the end of the range.
    #[error("the stored record has offset {offset}, but the range has {size}")]
    PastEnd {
        /// The first such bit.
        offset: u64,
        /// The number of offsets of the range.
        size: u64,
    },
}

/// Encodes offsets as `data` of a `RangeAllocation`.
pub fn encode(taken: &Bitmap) -> Vec<u8> {
    let mut bytes = Vec::new();
    for offset in taken.iter() {
        let Ok(index) = usize::try_from(offset / 8) else { break };
        bytes.resize(index.saturating_add(1), 0_u8);
        if let Some(byte) = bytes.last_mut() {
            *byte |= 1 << (offset % 8);
        }
    }
    bytes.reverse();
    bytes
}

/// Decodes the offsets of a `RangeAllocation` from its fields `range` and `data`. `ours` is the text that `range`
/// must equal, and `size` the number of offsets of that range.
pub fn decode(range: &str, data: &[u8], ours: &str, size: u64) -> Result<Bitmap, RecordError> {
    if range != ours {
        return Err(RecordError::OtherRange { stored: range.to_owned(), ours: ours.to_owned() });
    }
    let mut taken = Bitmap::new();
    for (byte, start) in data.iter().rev().zip((0_u64..).step_by(8)) {
        for bit in (0..8_u64).filter(|bit| byte & (1 << bit) != 0) {
            let offset = start.saturating_add(bit);
            if offset >= size {
                return Err(RecordError::PastEnd { offset, size });
            }
            taken.insert(offset);
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_a_big_endian_number() {
        let mut last = vec![0_u8; 32];
        last[0] = 0x80;
        for (offsets, bytes) in
            [(vec![], vec![]), (vec![0], vec![1]), (vec![0, 9], vec![2, 1]), (vec![255], last)]
        {
            let taken: Bitmap = offsets.into_iter().collect();
            assert_eq!(encode(&taken), bytes);
            assert_eq!(decode("a", &bytes, "a", 256), Ok(taken));
        }
    }

    #[test]
    fn records_of_other_ranges_are_refused() {
        let other = decode("30000-32767", &[1], "20000-20010", 11).unwrap_err();
        assert!(matches!(other, RecordError::OtherRange { .. }));
        assert_eq!(decode("a", &[8, 0], "a", 11), Err(RecordError::PastEnd { offset: 11, size: 11 }));
        assert!(decode("a", &[4, 0], "a", 11).is_ok());
        assert_eq!(decode("a", &[0, 0, 0, 1], "a", 11).unwrap().len(), 1);
    }
}
