//! Labels of DNS names: which text is one, and comparison without regard to case.

/// Maximum bytes of a label (RFC 1035, 2.3.4).
const MAX_LABEL: usize = 63;

/// Returns true if `text` is a label as the API server demands of names: lower-case letters, digits and inner hyphens,
/// at most 63 bytes (RFC 1123).
pub(crate) fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    !bytes.is_empty()
        && bytes.len() <= MAX_LABEL
        && bytes.iter().all(allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A label of a request in lower case, without allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lower {
    bytes: [u8; MAX_LABEL],
    length: usize,
}

impl Lower {
    /// Returns the label in lower case. It is empty if `label` is too long, and then equals no name.
    pub(crate) fn new(label: &[u8]) -> Self {
        let mut lower = Self { bytes: [0; MAX_LABEL], length: 0 };
        if let Some(part) = lower.bytes.get_mut(..label.len()) {
            part.copy_from_slice(label);
            part.make_ascii_lowercase();
            lower.length = label.len();
        }
        lower
    }

    /// Returns the label as text. It is empty, and equals no name, if the label is not UTF-8.
    pub(crate) fn as_str(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_the_api_server() {
        for good in ["a", "0", "web-1", "a".repeat(63).as_str()] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "é", "a b", "a".repeat(64).as_str()] {
            assert!(!is_label(bad), "{bad}");
        }
    }

    #[test]
    fn case_is_lowered_and_other_bytes_equal_nothing() {
        assert_eq!(Lower::new(b"WeB-1").as_str(), "web-1");
        assert_eq!(Lower::new(&[0xff, 0xfe]).as_str(), "");
        assert_eq!(Lower::new(&[b'a'; 64]).as_str(), "");
    }
}
