//! Finds the end of the first request's head.
//!
//! This module only looks for the end. HTTP parses the head, but needs more memory for that and starts when the head
//! is complete. An invalid request line, and frames that HTTP/2 refuses at once, count as a complete head, so that
//! their answer does not wait for more bytes.

use super::frames::{FRAME_HEAD, FrameHead};

/// The preface of every HTTP/2 connection (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum length of a frame, unless the server announces a larger limit (RFC 9113, 6.5.2).
const LONGEST_FRAME: usize = 16_384;

/// How far the first head has been scanned.
#[derive(Debug)]
pub(super) enum FirstHead {
    /// The first empty line after the request line ends the head (RFC 9112, 2.1 and 2.2).
    Http1 {
        /// Number of bytes scanned.
        seen: usize,
        /// The part of the head that the next byte belongs to.
        part: Part,
    },
    /// The first frame that ends a header block ends the head.
    Http2 {
        /// Offset of the next frame, and in the end of the last one.
        next: usize,
    },
}

/// A part of an HTTP/1 head (RFC 9112, 2 and 3).
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// Empty lines before the request line.
    Before,
    Method,
    /// The target and the version.
    Target {
        /// Offset of the target.
        begin: usize,
    },
    Fields {
        /// True if the current line has no characters so far.
        is_line_empty: bool,
    },
}

impl FirstHead {
    pub(super) fn new(is_http2: bool) -> Self {
        if is_http2 {
            Self::Http2 { next: PREFACE.len() }
        } else {
            Self::Http1 { seen: 0, part: Part::Before }
        }
    }

    /// Returns true if `bytes` contain the whole head. `bytes` are all bytes received: those of the last call and
    /// what followed.
    pub(super) fn is_complete(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Http1 { seen, part } => {
                let new = bytes.iter().enumerate().skip(*seen);
                *seen = bytes.len();
                for (at, byte) in new {
                    match part.after(bytes, at, *byte) {
                        Some(next) => *part = next,
                        None => return true,
                    }
                }
                false
            }
            Self::Http2 { next } => {
                let preface = bytes.get(..PREFACE.len()).unwrap_or(bytes);
                !PREFACE.starts_with(preface) || has_header_block(bytes, next)
            }
        }
    }

    /// Returns the length of a complete HTTP/2 head in `bytes`, from the preface on, and the stream of its request. `None`
    /// for HTTP/1, and for bytes that HTTP/2 refuses at once.
    pub(super) fn http2_head(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        let Self::Http2 { next } = self else { return None };
        let (frame, rest) = FrameHead::split(bytes.get(*next..)?)?;
        let is_whole = frame.length <= rest.len().min(LONGEST_FRAME);
        let end = next.saturating_add(FRAME_HEAD).saturating_add(frame.length);
        (frame.ends_headers() && is_whole).then_some((end, frame.stream))
    }
}

impl Part {
    /// Returns the part of the byte that follows `byte`, which is at offset `at` of `bytes`. Returns `None` where the
    /// head ends or turns out to be invalid.
    fn after(self, bytes: &[u8], at: usize, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Before, b'\r' | b'\n') => Some(Self::Before),
            (Self::Method, b' ') => Some(Self::Target { begin: at.saturating_add(1) }),
            (Self::Before | Self::Method, _) => is_token(byte).then_some(Self::Method),
            (Self::Target { begin }, b'\n') => {
                let line = bytes.get(begin..at).unwrap_or_default();
                is_target_and_version(line).then_some(Self::Fields { is_line_empty: true })
            }
            (Self::Target { .. } | Self::Fields { .. }, b'\r') => Some(self),
            (Self::Target { .. }, _) => (!byte.is_ascii_control()).then_some(self),
            (Self::Fields { is_line_empty }, b'\n') => {
                (!is_line_empty).then_some(Self::Fields { is_line_empty: true })
            }
            (Self::Fields { .. }, _) => Some(Self::Fields { is_line_empty: false }),
        }
    }
}

/// Returns true if a method may contain this byte (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns true if the rest of a request line has a target and a version of HTTP/1.
fn is_target_and_version(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (target, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    !target.is_empty() && matches!(version, b"HTTP/1.0" | b"HTTP/1.1") && words.next().is_none()
}

fn has_header_block(bytes: &[u8], next: &mut usize) -> bool {
    loop {
        let Some((frame, rest)) = FrameHead::split(bytes.get(*next..).unwrap_or_default()) else {
            return false;
        };
        if frame.length > LONGEST_FRAME {
            return true;
        }
        if rest.len() < frame.length {
            return false;
        }
        if frame.ends_headers() {
            return true;
        }
        *next = next.saturating_add(FRAME_HEAD + frame.length);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frames::{self, CONTINUATION, HEADERS};
    use super::*;

    /// Returns how many bytes complete the head when they arrive one by one.
    fn end(is_http2: bool, bytes: &[u8]) -> Option<usize> {
        let mut head = FirstHead::new(is_http2);
        (0..=bytes.len()).find(|&end| head.is_complete(&bytes[..end]))
    }

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        frames::frame(kind, flags, 1, &vec![0; length])
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
        ] {
            assert_eq!(end(false, text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn an_invalid_request_line_ends_the_wait() {
        for (text, expected) in [
            ("\u{1}garbage\r\n", 1),
            ("\r\n\r\n:", 5),
            ("GET\r\n", 4),
            ("GET /\r\n", 7),
            ("GET / \r\n", 8),
            ("GET  HTTP/1.1\n", 14),
            ("GET / HTTP/1.1 \r\n", 17),
            ("GET / HTTP/3.0\r\n", 16),
            ("GET /\u{1}", 6),
            ("PRI * HTTP/2.0\r\n\r\n", 16),
        ] {
            assert_eq!(end(false, text.as_bytes()), Some(expected), "{text:?}");
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

    /// Returns the length and the stream of the HTTP/2 head in these bytes.
    fn http2_head(is_http2: bool, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut head = FirstHead::new(is_http2);
        assert!(head.is_complete(bytes), "{bytes:x?}");
        head.http2_head(bytes)
    }

    #[test]
    fn the_length_of_an_http2_head_is_known() {
        let begun = [PREFACE, &frame(4, 0, 12), &frame(HEADERS, 1, 5)].concat();
        let done = [&begun[..], &frame(CONTINUATION, 4, 2)].concat();
        let more = [&done[..], &frame(HEADERS, 0, 100)].concat();
        assert_eq!(http2_head(true, &done), Some((done.len(), 1)));
        assert_eq!(http2_head(true, &more), Some((done.len(), 1)));
        let too_long = [&begun[..], &frame(CONTINUATION, 4, 16_385)].concat();
        assert_eq!(http2_head(true, &too_long), None);
        assert_eq!(http2_head(true, b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(http2_head(false, b"GET / HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn frames_that_http2_refuses_end_the_wait() {
        assert_eq!(end(true, b"GET / HTTP/1.1"), Some(1));
        assert_eq!(end(true, &[PREFACE, &frame(4, 0, 16_385)].concat()), Some(PREFACE.len() + 9));
    }

    proptest! {
        #[test]
        fn the_sizes_of_reads_do_not_matter(
            is_http2: bool,
            text in "(GET / HTTP/1.1|GET /|a: b|x)?(\r?\n){0,3}(GET / HTTP/1.0|a: b|x)?(\r?\n){0,3}",
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
