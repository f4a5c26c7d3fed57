//! Where the head of the first request of a connection ends.
//!
//! It only counts bytes; what they say is judged by HTTP, which takes more memory and is begun when all of the head is
//! there. Bytes that HTTP refuses at once count as a whole head.

/// What each HTTP/2 connection begins with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the head of a frame (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;
/// The longest frame that a client may send without being told of a larger limit (RFC 9113, 6.5.2).
const LONGEST_FRAME: usize = 16_384;
/// Types of frames that carry a header block, and their flag `END_HEADERS` (RFC 9113, 6.2 and 6.10).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// How far the first head has been looked at.
#[derive(Debug)]
pub(super) enum FirstHead {
    /// Lines, of which the first empty one after the request line ends the head (RFC 9112, 2.1 and 2.2).
    Http1 {
        /// Bytes that have been looked at.
        seen: usize,
        /// Whether there was anything but ends of lines.
        has_begun: bool,
        /// Whether the last line has nothing in it so far.
        is_line_empty: bool,
    },
    /// Frames, of which the first that ends a header block ends the head.
    Http2 {
        /// Where the next frame begins.
        next: usize,
    },
}

impl FirstHead {
    pub(super) fn new(is_http2: bool) -> Self {
        if is_http2 {
            Self::Http2 { next: PREFACE.len() }
        } else {
            Self::Http1 { seen: 0, has_begun: false, is_line_empty: true }
        }
    }

    /// Whether all of the head is among `bytes`, which are all that have come: those of the last call, and more.
    pub(super) fn is_complete(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Http1 { seen, has_begun, is_line_empty } => {
                let new = bytes.get(*seen..).unwrap_or_default();
                *seen = bytes.len();
                new.iter().any(|byte| {
                    let ends = *byte == b'\n' && *has_begun && *is_line_empty;
                    match byte {
                        b'\n' => *is_line_empty = true,
                        b'\r' => {}
                        _ => (*has_begun, *is_line_empty) = (true, false),
                    }
                    ends
                })
            }
            Self::Http2 { next } => {
                let preface = bytes.get(..PREFACE.len()).unwrap_or(bytes);
                !PREFACE.starts_with(preface) || has_header_block(bytes, next)
            }
        }
    }
}

fn has_header_block(bytes: &[u8], next: &mut usize) -> bool {
    loop {
        let frame = bytes.get(*next..).unwrap_or_default();
        let Some(([high, middle, low, kind, flags, ..], rest)) = frame.split_first_chunk::<FRAME_HEAD>()
        else {
            return false;
        };
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        if length > LONGEST_FRAME {
            return true;
        }
        if rest.len() < length {
            return false;
        }
        if matches!(*kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            return true;
        }
        *next = next.saturating_add(FRAME_HEAD + length);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How many of the bytes it takes, when they come one by one.
    fn end(is_http2: bool, bytes: &[u8]) -> Option<usize> {
        let mut head = FirstHead::new(is_http2);
        (0..=bytes.len()).find(|&end| head.is_complete(&bytes[..end]))
    }

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let [.., high, middle, low] = length.to_be_bytes();
        [&[high, middle, low, kind, flags, 0, 0, 0, 1][..], &vec![0; length.min(20_000)]].concat()
    }

    #[test]
    fn an_empty_line_ends_a_head() {
        for (text, expected) in [
            ("", None),
            ("\r\n\r\n\n\n", None),
            ("GET / HTTP/1.1\r\na: b\r\n", None),
            ("GET / HTTP/1.1\r\na: b\r\n\r", None),
            ("GET / HTTP/1.1\r\na: b\r\n\r\nbody", Some(24)),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", Some(22)),
            ("GET / HTTP/1.1\n\n", Some(16)),
            ("GET / HTTP/1.1\na: b\n\r\n", Some(22)),
            ("PRI * HTTP/2.0\r\n\r\n", Some(18)),
        ] {
            assert_eq!(end(false, text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_frame_of_a_header_block_ends_a_head() {
        let settings = [PREFACE, &frame(4, 0, 12), &frame(4, 1, 0), &frame(8, 4, 4)].concat();
        assert_eq!(end(true, PREFACE), None);
        assert_eq!(end(true, &settings), None);
        assert_eq!(end(true, &[&settings[..], &frame(HEADERS, 4, 5)].concat()), Some(settings.len() + 14));
        let begun = [&settings[..], &frame(HEADERS, 1, 5), &frame(CONTINUATION, 0, 1)].concat();
        assert_eq!(end(true, &begun), None);
        let done = [&begun[..], &frame(CONTINUATION, 4, 2), &frame(0, 1, 100)].concat();
        assert_eq!(end(true, &done), Some(begun.len() + 11));
    }

    #[test]
    fn what_http2_refuses_is_not_waited_for() {
        assert_eq!(end(true, b"GET / HTTP/1.1"), Some(1));
        assert_eq!(end(true, &[PREFACE, &frame(4, 0, 16_385)].concat()), Some(PREFACE.len() + 9));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            is_http2: bool,
            text in "(GET|a: b|x)?(\r?\n){0,3}(GET /|a: b|x)?(\r?\n){0,3}",
            frames in prop::collection::vec((0_u8..10, 0_u8..8, 0_usize..40), 0..6),
            cuts in prop::collection::vec(0_usize..300, 0..5),
        ) {
            let frames = frames.iter().flat_map(|(kind, flags, length)| frame(*kind, *flags, *length));
            let bytes: Vec<u8> =
                if is_http2 { PREFACE.iter().copied().chain(frames).collect() } else { text.into_bytes() };
            let mut head = FirstHead::new(is_http2);
            let mut cuts: Vec<_> = cuts.into_iter().filter(|&cut| cut < bytes.len()).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let found = cuts.iter().find(|&&cut| head.is_complete(&bytes[..cut]));
            prop_assert_eq!(found.is_some(), end(is_http2, &bytes).is_some());
        }
    }
}
