//! User data: bytes that the kernel keeps with an object and does not read. nft stores comments and types there.

/// Entry that holds the comment of a table, chain, rule or element.
const COMMENT: u8 = 0;
/// Entries of a set (`NFTNL_UDATA_SET_*`).
const SET_KEY_BYTE_ORDER: u8 = 0;
const SET_DATA_BYTE_ORDER: u8 = 1;
const SET_MERGE_ELEMENTS: u8 = 2;
const SET_COMMENT: u8 = 7;

/// What the kernel takes at most (`NFT_USERDATA_MAXLEN`).
const LENGTH_MAX: usize = 256;
/// What nft takes at most as a comment, its NUL not counted.
const COMMENT_MAX: usize = 127;

/// Entries of (type, length, value), each length a byte. Entries that would not fit are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserData(Vec<u8>);

/// The byte order in which nft prints keys or data of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The machine's: marks, interface indexes, integers that never came off the wire.
    Host,
    /// Network: addresses, ports, protocols.
    Network,
}

impl UserData {
    /// No user data.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// A comment as nft prints it, for a table, chain, rule or element; cut at 127 bytes, nft's limit.
    pub fn comment(text: &str) -> Self {
        let mut data = Self::empty();
        data.push_text(COMMENT, text);
        data
    }

    /// What nft needs to print a set: the byte orders of its key and of its data (if it is a map with values),
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

    /// Says that nft shall merge adjacent intervals of this set.
    pub fn merge_elements(&mut self) {
        self.push(SET_MERGE_ELEMENTS, &1_u32.to_ne_bytes());
    }

    /// User data as found in a message.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// As it goes into a message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry; one that would not fit is left out, and `false` says so.
    pub fn push(&mut self, kind: u8, value: &[u8]) -> bool {
        let Ok(length) = u8::try_from(value.len()) else { return false };
        if self.0.len().saturating_add(value.len()).saturating_add(2) > LENGTH_MAX {
            return false;
        }
        self.0.extend_from_slice(&[kind, length]);
        self.0.extend_from_slice(value);
        true
    }

    /// The value of the first entry of this type.
    pub fn get(&self, kind: u8) -> Option<&[u8]> {
        entries(&self.0).find(|&(found, _)| found == kind).map(|(_, value)| value)
    }

    /// The comment of a table, chain, rule or element.
    pub fn comment_text(&self) -> Option<&str> {
        self.get(COMMENT).and_then(text)
    }

    /// The comment of a set.
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
    /// nft's `enum byteorder`.
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
