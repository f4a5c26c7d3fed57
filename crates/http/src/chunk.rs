//! The memory of the chunks in which long bodies are sent.
//!
//! A block that has been sent is used again. A new block of this size comes from the kernel, which has to provide and clear each
//! of its pages.

use std::cell::RefCell;

use bytes::Bytes;

/// Maximum number of bytes that are copied together for one write to the socket, unless a single object is larger.
pub(crate) const CHUNK: usize = 128 << 10;
/// Blocks that a thread keeps for later. A connection queues about as many before it writes (hyper's `max_buf_size`).
const KEPT: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty block for a chunk of a body of which `left` bytes are left.
pub(crate) fn block(left: u64) -> Vec<u8> {
    match usize::try_from(left) {
        Ok(left) if left < CHUNK => Vec::with_capacity(left),
        _ => SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(CHUNK)),
    }
}

/// Returns the bytes of a block. Its memory is used again when they are dropped.
pub(crate) fn sealed(block: Vec<u8>) -> Bytes {
    if block.capacity() == CHUNK { Bytes::from_owner(Block(block)) } else { block.into() }
}

struct Block(Vec<u8>);

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut block = std::mem::take(&mut self.0);
        block.clear();
        // Fails only if the thread is ending.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.push(block);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_were_sent_are_used_again() {
        let places = |blocks: &[Vec<u8>]| blocks.iter().map(Vec::as_ptr).collect::<Vec<_>>();
        let mut blocks: Vec<Vec<u8>> = (0..2 * KEPT).map(|_| block(u64::MAX)).collect();
        let known = places(&blocks);
        for block in &mut blocks {
            block.push(7);
        }
        let sent: Vec<Bytes> = blocks.into_iter().map(sealed).collect();
        assert!(sent.iter().all(|bytes| bytes[..] == [7]));
        drop(sent);
        let again: Vec<Vec<u8>> = (0..KEPT).map(|_| block(CHUNK as u64)).collect();
        assert!(again.iter().all(|block| block.is_empty() && block.capacity() == CHUNK));
        assert!(places(&again).iter().all(|place| known.contains(place)));
        assert_eq!(SPARE.with_borrow(Vec::len), 0, "only so many are kept");
    }

    #[test]
    fn short_and_long_blocks_are_not_kept() {
        let mut long = block(u64::MAX);
        long.resize(CHUNK + 1, 7);
        drop((sealed(block(10)), sealed(long)));
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
    }
}
