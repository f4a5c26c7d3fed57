//! The element operations of a transaction, in compact form.

use super::element::{Element, Key, Set};

/// Element operations, grouped by set. The form is compact because the first load of a big cluster is one changeset.
#[derive(Debug, Default)]
pub(crate) struct Changeset {
    arena: Vec<u8>,
    deletions: [Vec<Entry>; Set::ALL.len()],
    additions: [Vec<Entry>; Set::ALL.len()],
}

/// The offset of an operation in the arena, and the lengths of its parts, which lie there one after the other.
#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: u32,
    key: u8,
    key_end: u8,
    data: u8,
    comment: u8,
}

/// One operation, borrowed from the changeset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation<'a> {
    pub(crate) key: &'a [u8],
    /// Empty if the key is not an interval.
    pub(crate) key_end: &'a [u8],
    /// Empty for a set. In a deletion, the former value if it is known, which is not written.
    pub(crate) data: &'a [u8],
    /// Empty if there is no comment.
    pub(crate) comment: &'a str,
}

/// Length in bytes of the longest comment that nft accepts on an element (`NFTNL_UDATA_COMMENT_MAXLEN` less its final
/// NUL).
pub(crate) const COMMENT_MAX: usize = 127;

impl Changeset {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of element operations.
    pub(crate) fn len(&self) -> usize {
        self.deletions.iter().chain(&self.additions).map(Vec::len).sum()
    }

    /// Returns the bytes of all keys, data and comments, for an estimate of the size of the batch.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn add(&mut self, element: &Element, comment: &str) {
        self.copy(
            element.set,
            true,
            Operation {
                key: element.key.as_slice(),
                key_end: element.key_end.as_ref().map(Key::as_slice).unwrap_or_default(),
                data: element.data.as_slice(),
                comment,
            },
        );
    }

    pub(crate) fn delete(&mut self, set: Set, key: &Key, key_end: Option<&Key>) {
        self.delete_with(set, key, key_end, &[]);
    }

    fn delete_with(&mut self, set: Set, key: &Key, key_end: Option<&Key>, data: &[u8]) {
        let key_end = key_end.map(Key::as_slice).unwrap_or_default();
        self.copy(set, false, Operation { key: key.as_slice(), key_end, data, comment: "" });
    }

    /// Adds the difference between two sorted lists of elements.
    pub(crate) fn difference(&mut self, old: &[Element], new: &[Element], comment: &str) {
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        let place = |element: &Element| (element.set, element.key, element.key_end);
        loop {
            match (old.peek(), new.peek()) {
                (Some(&before), Some(&after)) if place(before) == place(after) => {
                    if before.data != after.data {
                        self.remove_known(before);
                        self.add(after, comment_for(after.set, comment));
                    }
                    old.next();
                    new.next();
                }
                (Some(&before), after) if after.is_none_or(|after| place(before) < place(after)) => {
                    self.remove_known(before);
                    old.next();
                }
                (_, Some(&after)) => {
                    self.add(after, comment_for(after.set, comment));
                    new.next();
                }
                _ => return,
            }
        }
    }

    /// Returns the deletions of a set.
    pub(crate) fn deletions(&self, set: Set) -> impl ExactSizeIterator<Item = Operation<'_>> {
        self.operations(self.deletions.get(set.index()))
    }

    /// Returns the additions of a set.
    pub(crate) fn additions(&self, set: Set) -> impl ExactSizeIterator<Item = Operation<'_>> {
        self.operations(self.additions.get(set.index()))
    }

    /// Deletes an element, whatever its data is in the kernel.
    pub(crate) fn remove(&mut self, element: &Element) {
        self.delete(element.set, &element.key, element.key_end.as_ref());
    }

    /// Deletes an element that has this data in the kernel.
    fn remove_known(&mut self, element: &Element) {
        let data = element.data.as_slice();
        self.delete_with(element.set, &element.key, element.key_end.as_ref(), data);
    }

    /// Moves the deletions of a set whose key passes the test to another changeset.
    pub(crate) fn move_deletions(&mut self, set: Set, to: &mut Self, is_moved: impl Fn(&[u8]) -> bool) {
        for entry in self.split(set, false, |operation| !is_moved(operation.key)) {
            to.copy(set, false, self.operation(entry));
        }
    }

    /// Moves the additions of a set whose key passes the test to another changeset.
    pub(crate) fn move_additions(&mut self, set: Set, to: &mut Self, is_moved: impl Fn(&[u8]) -> bool) {
        for entry in self.split(set, true, |operation| !is_moved(operation.key)) {
            to.copy(set, true, self.operation(entry));
        }
    }

    /// Keeps the additions or the deletions of a set that pass the test, and returns the others.
    fn split(&mut self, set: Set, addition: bool, is_kept: impl Fn(Operation<'_>) -> bool) -> Vec<Entry> {
        let entries = self.entries_mut(addition).get_mut(set.index()).map(std::mem::take).unwrap_or_default();
        let (kept, others) = entries.into_iter().partition(|entry| is_kept(self.operation(*entry)));
        if let Some(place) = self.entries_mut(addition).get_mut(set.index()) {
            *place = kept;
        }
        others
    }

    const fn entries_mut(&mut self, addition: bool) -> &mut [Vec<Entry>; Set::ALL.len()] {
        if addition { &mut self.additions } else { &mut self.deletions }
    }

    /// Returns the deletions (`false`) and additions (`true`) of a set in the order of their keys, a deletion before
    /// the addition of the same key.
    pub(crate) fn in_key_order(&self, set: Set) -> Vec<(bool, Operation<'_>)> {
        let mut operations = self.deletions_first(set);
        operations.sort_by(|(a, x), (b, y)| (x.key, x.key_end, a).cmp(&(y.key, y.key_end, b)));
        operations
    }

    /// Returns the deletions (`false`) and then the additions (`true`) of a set.
    pub(crate) fn deletions_first(&self, set: Set) -> Vec<(bool, Operation<'_>)> {
        let deletions = self.deletions(set).map(|operation| (false, operation));
        deletions.chain(self.additions(set).map(|operation| (true, operation))).collect()
    }

    fn operations<'a>(
        &'a self,
        entries: Option<&'a Vec<Entry>>,
    ) -> impl ExactSizeIterator<Item = Operation<'a>> {
        entries.map(Vec::as_slice).unwrap_or_default().iter().map(|entry| self.operation(*entry))
    }

    fn operation(&self, entry: Entry) -> Operation<'_> {
        let rest = self.arena.get(entry.offset as usize..).unwrap_or_default();
        let (key, rest) = split(rest, entry.key);
        let (key_end, rest) = split(rest, entry.key_end);
        let (data, rest) = split(rest, entry.data);
        let (comment, _) = split(rest, entry.comment);
        Operation { key, key_end, data, comment: std::str::from_utf8(comment).unwrap_or_default() }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "keys, data and comments have at most 255 bytes, and all of a change fits into a netlink message"
    )]
    fn copy(&mut self, set: Set, addition: bool, operation: Operation<'_>) {
        let Operation { key, key_end, data, comment } = operation;
        let comment = truncated(comment);
        let entry = Entry {
            offset: self.arena.len() as u32,
            key: key.len() as u8,
            key_end: key_end.len() as u8,
            data: data.len() as u8,
            comment: comment.len() as u8,
        };
        for part in [key, key_end, data, comment.as_bytes()] {
            self.arena.extend_from_slice(part);
        }
        if let Some(entries) = self.entries_mut(addition).get_mut(set.index()) {
            entries.push(entry);
        }
    }
}

/// Returns true if the elements of a set carry the name of their Service port.
pub(crate) const fn has_comment(set: Set) -> bool {
    matches!(
        set,
        Set::Services
            | Set::NodePorts
            | Set::NoEndpointServices
            | Set::NoLocalEndpointServices
            | Set::NoEndpointNodePorts
            | Set::NoLocalEndpointNodePorts
            | Set::FirewallIps
    )
}

/// Returns true if elements of a set hold more than keys and data: a comment, or a counter.
pub(crate) const fn has_more(set: Set) -> bool {
    has_comment(set) || set.has_counters()
}

/// Returns the comment of an element in the set, cut to what nft can show.
pub(crate) fn comment_for(set: Set, comment: &str) -> &str {
    if has_comment(set) { truncated(comment) } else { "" }
}

/// Cuts a comment at the first character that would break a listing. An API server without validation may pass on
/// names with any character.
fn truncated(comment: &str) -> &str {
    let spoils = |byte: u8| byte.is_ascii_control() || byte == b'"';
    let mut end =
        comment.bytes().take(COMMENT_MAX).position(spoils).unwrap_or(comment.len().min(COMMENT_MAX));
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    comment.get(..end).unwrap_or_default()
}

fn split(bytes: &[u8], length: u8) -> (&[u8], &[u8]) {
    bytes.split_at_checked(usize::from(length)).unwrap_or((bytes, &[]))
}

#[cfg(test)]
mod tests {
    use super::super::element::Data;
    use super::*;

    fn element(set: Set, key: u32, data: u32) -> Element {
        Element { set, key: Key::EMPTY.number(key), key_end: None, data: Data::EMPTY.number(data) }
    }

    #[test]
    fn difference_is_minimal() {
        let old =
            [element(Set::Services, 1, 10), element(Set::Services, 2, 20), element(Set::Endpoints, 1, 5)];
        let new =
            [element(Set::Services, 2, 21), element(Set::Services, 3, 30), element(Set::Endpoints, 1, 5)];
        let mut changes = Changeset::default();
        changes.difference(&old, &new, "demo/web:http");
        let keys = |operations: Vec<Operation<'_>>| -> Vec<Vec<u8>> {
            operations.iter().map(|operation| operation.key.to_vec()).collect()
        };
        let number = |n: u32| n.to_ne_bytes().to_vec();
        assert_eq!(keys(changes.deletions(Set::Services).collect()), [number(1), number(2)]);
        assert_eq!(keys(changes.additions(Set::Services).collect()), [number(2), number(3)]);
        assert_eq!(changes.additions(Set::Services).next().map(|o| o.comment), Some("demo/web:http"));
        assert_eq!(changes.len(), 4);
    }

    #[test]
    fn comments_hold_nothing_that_spoils_a_listing() {
        let comment = |text| comment_for(Set::Services, text);
        assert_eq!(comment("demo/line\nbreak"), "demo/line");
        assert_eq!(comment("demo/quote\"d"), "demo/quote");
        assert_eq!(comment("demo/zero\0"), "demo/zero");
        assert_eq!(comment(&"\u{1f40b}".repeat(40)).len(), 124, "no half character");
    }
}
