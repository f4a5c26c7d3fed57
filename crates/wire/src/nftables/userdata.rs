//! User data: bytes that the kernel stores with an object and does not read. nft stores comments and types in them.

/// Type of the entry with the comment of a table, chain, rule or element.
const COMMENT: u8 = 0;
/// Types of a set's entries (`NFTNL_UDATA_SET_*`).
const SET_KEY_BYTE_ORDER: u8 = 0;
const SET_DATA_BYTE_ORDER: u8 = 1;
const SET_MERGE_ELEMENTS: u8 = 2;
const SET_COMMENT: u8 = 7;

/// Maximum length of user data in bytes (`NFT_USERDATA_MAXLEN`).
const LENGTH_MAX: usize = 256;
/// Maximum length of a comment in nft, in bytes without the NUL.
const COMMENT_MAX: usize = 127;

/// Entries of type, length and value, with one byte each for type and length. Entries that do not fit are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserData(Vec<u8>);

/// The byte order in which nft prints keys or data of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The machine's byte order: marks, interface indexes, integers that are not from a packet.
    Host,
    /// Network byte order: addresses, ports, protocols.
    Network,
}

impl UserData {
    /// Creates empty user data.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Creates the comment of a table, chain, rule or element as nft prints it. Cut at 127 bytes, nft's limit.
    pub fn comment(text: &str) -> Self {
        let mut data = Self::empty();
        data.push_text(COMMENT, text);
        data
    }

    /// Creates what nft needs to print a set: the byte orders of its key and (for a map with values) of its data,
    /// and a comment if not empty.
    pub fn set(key: ByteOrder, data: Option<ByteOrder>, comment: &str) -> Self {
        let mut entries = Self::empty();
        entries.push(SET_KEY_BYTE_ORDER, &key.number().to_ne_bytes());
        if let Some(order) = data {
            entries.push(SET_DATA_BYTE_ORDER, &order.number().to_ne_bytes());
        }
        if !comment.is_empty() {
            entries.push_text(SET_COMMENT, comment);
        }
        entries
    }

    /// Tells nft to merge adjacent intervals of this set.
    pub fn merge_elements(&mut self) {
        self.push(SET_MERGE_ELEMENTS, &1_u32.to_ne_bytes());
    }

    /// Creates user data from the bytes of a message.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Returns the bytes for a message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry. Returns false and adds nothing if it does not fit.
    pub fn push(&mut self, kind: u8, value: &[u8]) -> bool {
        let Ok(length) = u8::try_from(value.len()) else { return false };
        if self.0.len().saturating_add(value.len()).saturating_add(2) > LENGTH_MAX {
            return false;
        }
        self.0.extend_from_slice(&[kind, length]);
        self.0.extend_from_slice(value);
        true
    }

    /// Returns the value of the first entry of this type.
    pub fn get(&self, kind: u8) -> Option<&[u8]> {
        entries(&self.0).find(|&(found, _)| found == kind).map(|(_, value)| value)
    }

    /// Returns the comment of a table, chain, rule or element.
    pub fn comment_text(&self) -> Option<&str> {
        self.get(COMMENT).and_then(text)
    }

    /// Returns the comment of a set.
    pub fn set_comment_text(&self) -> Option<&str> {
        self.get(SET_COMMENT).and_then(text)
    }

    fn push_text(&mut self, kind: u8, comment: &str) {
        let end = (0..=COMMENT_MAX).rev().find(|&end| comment.is_char_boundary(end)).unwrap_or(0);
        let cut = if comment.len() > COMMENT_MAX { comment.get(..end).unwrap_or_default() } else { comment };
        let cut = cut.split('\0').next().unwrap_or_default();
        let mut value = Vec::with_capacity(cut.len().saturating_add(1));
        value.extend_from_slice(cut.as_bytes());
        value.push(0);
        self.push(kind, &value);
    }
}

impl ByteOrder {
    /// Returns the number of nft's `enum byteorder`.
    fn number(self) -> u32 {
        match self {
            Self::Host => 1,
            Self::Network => 2,
        }
    }
}

fn entries(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[kind, length], tail) = rest.split_first_chunk()?;
        let (value, tail) = tail.split_at_checked(usize::from(length))?;
        rest = tail;
        Some((kind, value))
    })
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}
