//! Frames of HTTP/2: their headers, and the few that HTTP still gets from a client that was refused.

/// Length of a frame's header in bytes (RFC 9113, 4.1).
pub(super) const FRAME_HEAD: usize = 9;
/// Types of the frames that carry a header block, and their flag `END_HEADERS` (RFC 9113, 6.2 and 6.10).
pub(super) const HEADERS: u8 = 1;
pub(super) const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// Types of the frames by which a client reads an answer and a connection ends (RFC 9113, 6.4 to 6.9).
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Maximum length of such a frame without its header. Those of clients are shorter: 4 to 36 bytes.
const SHORT: usize = 64;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Length of the frame without this header.
    pub(super) length: usize,
    kind: u8,
    flags: u8,
    /// 0 for the connection.
    pub(super) stream: u32,
}

impl FrameHead {
    /// Returns the header at the beginning of `bytes`, and what follows it. `None` if it is not complete.
    pub(super) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([high, middle, low, kind, flags, stream @ ..], rest) =
            bytes.split_first_chunk::<FRAME_HEAD>()?;
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        // The first bit is reserved.
        let stream = u32::from_be_bytes(*stream) & (u32::MAX >> 1);
        Some((Self { length, kind: *kind, flags: *flags, stream }, rest))
    }

    /// Returns true if the frame ends a header block.
    pub(super) const fn ends_headers(self) -> bool {
        matches!(self.kind, HEADERS | CONTINUATION) && self.flags & END_HEADERS != 0
    }
}

/// Selects the frames that HTTP gets from a client that was refused.
///
/// HTTP needs memory for a header block that does not end, and for each further request. So it gets only the frames by
/// which the client takes its answer and the connection ends.
#[derive(Debug)]
pub(super) struct ShortFrames {
    /// The stream of the answer.
    stream: u32,
    /// The beginning of a frame.
    begun: Vec<u8>,
    /// Number of bytes of the current frame that are still to be left out.
    skipped: usize,
}

impl ShortFrames {
    /// `stream` is the stream of the only request that is answered.
    pub(super) fn of(stream: u32) -> Self {
        Self { stream, begun: Vec::new(), skipped: 0 }
    }

    /// Takes what the client has sent next. Returns the frames that HTTP gets, each as a whole.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::new();
        for byte in bytes {
            if self.skipped > 0 {
                self.skipped -= 1;
                continue;
            }
            self.begun.push(*byte);
            let Some((head, rest)) = FrameHead::split(&self.begun) else { continue };
            if self.is_passed(head) {
                if rest.len() == head.length {
                    passed.append(&mut self.begun);
                }
            } else {
                self.skipped = head.length;
                self.begun.clear();
            }
        }
        passed
    }

    fn is_passed(&self, head: FrameHead) -> bool {
        let is_needed = matches!(head.kind, RST_STREAM | SETTINGS | PING | GOAWAY | WINDOW_UPDATE);
        is_needed && head.length <= SHORT && (head.stream == 0 || head.stream == self.stream)
    }
}

/// Returns a frame.
#[cfg(test)]
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    [&[high, middle, low, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(kind: u8, stream: u32, length: usize) -> Vec<u8> {
        frame(kind, 0, stream, &vec![kind; length])
    }

    #[test]
    fn a_header_is_nine_bytes() {
        let bytes = [&frame(1, 0, 0x8000_0003, &[1; 300])[..], b"more"].concat();
        let (head, rest) = FrameHead::split(&bytes).unwrap();
        assert_eq!((head.length, head.stream, rest.len()), (300, 3, 304));
        assert!(!head.ends_headers());
        assert_eq!(FrameHead::split(&bytes[..8]), None);
        for (kind, flags, ends) in [(1, 4, true), (9, 5, true), (1, 1, false), (0, 4, false)] {
            let (head, _) = FrameHead::split(&[0, 0, 0, kind, flags, 0, 0, 0, 1]).unwrap();
            assert_eq!(head.ends_headers(), ends, "{kind} {flags}");
        }
    }

    proptest! {
        #[test]
        fn only_frames_that_end_a_connection_are_passed(
            frames in prop::collection::vec((0_u8..12, 0_u32..4, 0_usize..80), 0..12),
            size in 1_usize..60,
        ) {
            let bytes: Vec<u8> =
                frames.iter().flat_map(|(kind, stream, length)| filled(*kind, *stream, *length)).collect();
            let wanted: Vec<u8> = frames
                .iter()
                .filter(|(kind, stream, length)| {
                    [3, 4, 6, 7, 8].contains(kind) && [0, 1].contains(stream) && *length <= 64
                })
                .flat_map(|(kind, stream, length)| filled(*kind, *stream, *length))
                .collect();
            let mut short = ShortFrames::of(1);
            let passed: Vec<u8> = bytes.chunks(size).flat_map(|part| short.pass(part)).collect();
            prop_assert_eq!(passed, wanted);
            prop_assert!(short.begun.is_empty() && short.skipped == 0);
        }
    }
}
