//! The first messages of a commit, for the history of the node agent.

/// Bytes of text after which no line is added.
const BYTES: usize = 900;

/// The first messages of a commit, as lines in the words of a program that writes such messages: nft,
/// `iptables-restore`, ipvsadm, ipset, ip. Bounded, so that the cost does not depend on the size of a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    lines: Vec<String>,
    bytes: usize,
    is_full: bool,
}

impl Messages {
    /// The most lines that it has.
    pub const LINES: usize = 12;

    /// Adds lines while they have room. Takes no more lines from the iterator than that, and one.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = impl Into<String>>) {
        let mut lines = lines.into_iter();
        while !self.is_full
            && let Some(line) = lines.next()
        {
            let line = line.into();
            let bytes = self.bytes.saturating_add(line.len());
            self.is_full = self.lines.len() >= Self::LINES || bytes > BYTES;
            if !self.is_full {
                self.bytes = bytes;
                self.lines.push(line);
            }
        }
    }

    /// Adds the messages of another transaction.
    pub fn add(&mut self, other: &Self) {
        self.extend(other.lines.iter().cloned());
        self.is_full |= other.is_full;
    }

    /// Returns the lines, in the order of writing.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Returns true if there were more messages than it has lines.
    pub const fn has_more(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_while_they_have_room() {
        let mut messages = Messages::default();
        messages.extend(["a", "b"]);
        let mut other = Messages::default();
        other.extend(["c"]);
        messages.add(&other);
        assert_eq!((messages.lines().join(""), messages.has_more()), ("abc".to_owned(), false));
        let mut taken = 0;
        messages.extend((0_u32..).inspect(|_| taken += 1).map(|number| number.to_string()));
        assert_eq!((messages.lines().len(), messages.has_more()), (Messages::LINES, true));
        assert_eq!(taken, Messages::LINES - 3 + 1);
        messages.extend(["d"]);
        assert_eq!(messages.lines().len(), Messages::LINES);
    }

    #[test]
    fn a_line_that_is_too_long_ends_them() {
        let mut messages = Messages::default();
        messages.extend(["a".to_owned(), "b".repeat(BYTES), "c".to_owned()]);
        assert_eq!((messages.lines(), messages.has_more()), (&["a".to_owned()][..], true));
        let mut first = Messages::default();
        first.add(&messages);
        assert!(first.has_more(), "so does a part");
    }
}
