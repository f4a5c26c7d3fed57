//! The encoding of entries: numbers as LEB128, texts with their length, and the words of almost every record as one byte.
//!
//! It is for the memory of one process only, so it has no version.

use std::time::Duration;

use crate::entry::{Change, Commit, Drift, Entry, Note, ObjectEvent, Size, Verb};

/// Bytes of the longest record.
pub const RECORD_MAX: usize = 4_096;
/// Bytes of the longest name. Names of API objects have at most 253.
const NAME_MAX: usize = 256;
/// Bytes of the longest other text.
const TEXT_MAX: usize = 1_000;
/// Bytes of all messages of a commit. A commit collects fewer.
const MESSAGES_MAX: usize = 930;
/// Entries of the longest list.
pub(crate) const LIST_MAX: usize = 4;
/// Bits of the number in a byte of LEB128.
const BITS: u32 = 7;
const MORE: u8 = 1 << BITS;

/// Words that have one byte. Any other is written as a name after [`OTHER`].
const WORDS: [&str; 16] = [
    "IPv4",
    "IPv6",
    "nftables",
    "iptables",
    "ipvs",
    "userspace",
    "commit",
    "replacement",
    "collection",
    "Service",
    "EndpointSlice",
    "Node",
    "ServiceCIDR",
    "TCP",
    "UDP",
    "SCTP",
];
const OTHER: u8 = u8::MAX;

const OBJECT: u8 = 0;
const CHANGE: u8 = 1;
const COMMIT: u8 = 2;
const DRIFT: u8 = 3;
const NOTE: u8 = 4;

/// Returns the encoded time and entry.
pub(crate) fn encode(at: Duration, entry: &Entry) -> Vec<u8> {
    let mut writer = Writer(Vec::with_capacity(256));
    writer.number(u64::try_from(at.as_micros()).unwrap_or(u64::MAX));
    match entry {
        Entry::Object(event) => writer.object(event),
        Entry::Change(change) => writer.change(change),
        Entry::Commit(commit) => writer.commit(commit),
        Entry::Drift(Drift { family }) => {
            writer.byte(DRIFT);
            writer.word(family);
        }
        Entry::Note(Note { about, text }) => {
            writer.byte(NOTE);
            writer.name(about);
            writer.text(text);
        }
    }
    writer.0
}

/// Returns the time and entry. `None` if the bytes are something else.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Duration, Entry)> {
    let mut reader = Reader(bytes);
    let at = Duration::from_micros(reader.number()?);
    let entry = match reader.byte()? {
        OBJECT => Entry::Object(reader.object()?),
        CHANGE => Entry::Change(reader.change()?),
        COMMIT => Entry::Commit(reader.commit()?),
        DRIFT => Entry::Drift(Drift { family: reader.word()? }),
        NOTE => Entry::Note(Note { about: reader.text()?, text: reader.text()? }),
        _ => return None,
    };
    reader.0.is_empty().then_some((at, entry))
}

/// Appends an encoded length.
pub(crate) fn push_length(bytes: &mut Vec<u8>, length: usize) {
    let mut writer = Writer(std::mem::take(bytes));
    writer.number(length as u64);
    *bytes = writer.0;
}

/// Splits off the bytes that a length comes before. `None` if the bytes are something else.
pub(crate) fn split_length(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut reader = Reader(bytes);
    let length = usize::try_from(reader.number()?).ok()?;
    reader.0.split_at_checked(length)
}

/// Returns the longest start of a text with at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn flag(&mut self, flag: bool) {
        self.byte(flag.into());
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
    fn number(&mut self, mut number: u64) {
        while number >= MORE.into() {
            self.byte(number as u8 | MORE);
            number >>= BITS;
        }
        self.byte(number as u8);
    }

    fn at_most(&mut self, text: &str, most: usize) {
        let text = cut(text, most);
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn word(&mut self, word: &str) {
        let known = WORDS.iter().position(|known| *known == word);
        if let Some(index) = known.and_then(|index| u8::try_from(index).ok()) {
            self.byte(index);
        } else {
            self.byte(OTHER);
            self.name(word);
        }
    }

    fn name(&mut self, name: &str) {
        self.at_most(name, NAME_MAX);
    }

    fn text(&mut self, text: &str) {
        self.at_most(text, TEXT_MAX);
    }

    fn list(&mut self, names: &[String]) {
        let names = names.get(..LIST_MAX).unwrap_or(names);
        self.number(names.len() as u64);
        for name in names {
            self.name(name);
        }
    }

    fn object(&mut self, event: &ObjectEvent) {
        let ObjectEvent { verb, kind, namespace, name, resource_version, changed, faults, kept } = event;
        self.byte(OBJECT);
        self.flag(*verb == Verb::Deleted);
        self.word(kind);
        for name in [namespace, name, resource_version] {
            self.name(name);
        }
        self.flag(*changed);
        self.list(faults);
        self.text(kept);
    }

    fn change(&mut self, change: &Change) {
        let Change { family, service_port, protocol, before, after, difference } = change;
        self.byte(CHANGE);
        self.word(family);
        self.name(service_port);
        self.word(protocol);
        self.size(*before);
        self.size(*after);
        self.text(difference);
    }

    fn size(&mut self, size: Option<Size>) {
        self.flag(size.is_some());
        if let Some(Size { frontends, cluster, local }) = size {
            for number in [frontends, cluster, local] {
                self.number(number);
            }
        }
    }

    fn commit(&mut self, commit: &Commit) {
        self.byte(COMMIT);
        for word in [&commit.family, &commit.mode, &commit.step] {
            self.word(word);
        }
        self.flag(commit.reason.is_some());
        if let Some(reason) = &commit.reason {
            self.name(reason);
        }
        for flag in [commit.full, commit.repaired, commit.verified] {
            self.flag(flag);
        }
        self.number(commit.changed);
        self.list(&commit.service_ports);
        let Commit { refused, elements, objects, bytes, duration_us, kernel_us, .. } = *commit;
        let numbers = [refused, elements, objects, bytes, duration_us, kernel_us];
        for number in numbers {
            self.number(number);
        }
        // As one text, because lists are for names and have few.
        self.at_most(&commit.messages.join("\n"), MESSAGES_MAX);
        self.flag(commit.error.is_some());
        if let Some(error) = &commit.error {
            self.text(error);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().map(|byte| byte != 0)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(BITS as usize) {
            let byte = self.byte()?;
            number |= u64::from(byte & !MORE).checked_shl(shift)?;
            if byte & MORE == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let (text, rest) = split_length(self.0)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn word(&mut self) -> Option<String> {
        match self.byte()? {
            OTHER => self.text(),
            index => WORDS.get(usize::from(index)).map(|word| (*word).to_owned()),
        }
    }

    fn list(&mut self) -> Option<Vec<String>> {
        let count = self.number()?;
        (0..count).map(|_| self.text()).collect()
    }

    fn object(&mut self) -> Option<ObjectEvent> {
        Some(ObjectEvent {
            verb: if self.flag()? { Verb::Deleted } else { Verb::Applied },
            kind: self.word()?,
            namespace: self.text()?,
            name: self.text()?,
            resource_version: self.text()?,
            changed: self.flag()?,
            faults: self.list()?,
            kept: self.text()?,
        })
    }

    fn change(&mut self) -> Option<Change> {
        Some(Change {
            family: self.word()?,
            service_port: self.text()?,
            protocol: self.word()?,
            before: self.size()?,
            after: self.size()?,
            difference: self.text()?,
        })
    }

    /// Reads a size, which may be missing.
    #[expect(clippy::option_option, reason = "the outer one is a read that failed")]
    fn size(&mut self) -> Option<Option<Size>> {
        if !self.flag()? {
            return Some(None);
        }
        let (frontends, cluster, local) = (self.number()?, self.number()?, self.number()?);
        Some(Some(Size { frontends, cluster, local }))
    }

    /// Reads a text, which may be missing.
    #[expect(clippy::option_option, reason = "the outer one is a read that failed")]
    fn optional(&mut self) -> Option<Option<String>> {
        if self.flag()? { self.text().map(Some) } else { Some(None) }
    }

    fn commit(&mut self) -> Option<Commit> {
        Some(Commit {
            family: self.word()?,
            mode: self.word()?,
            step: self.word()?,
            reason: self.optional()?,
            full: self.flag()?,
            repaired: self.flag()?,
            verified: self.flag()?,
            changed: self.number()?,
            service_ports: self.list()?,
            refused: self.number()?,
            elements: self.number()?,
            objects: self.number()?,
            bytes: self.number()?,
            duration_us: self.number()?,
            kernel_us: self.number()?,
            messages: self.text()?.lines().map(str::to_owned).collect(),
            error: self.optional()?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> impl Strategy<Value = Option<Size>> {
        let size = any::<(u64, u64, u64)>().prop_map(|(frontends, cluster, local)| Size {
            frontends,
            cluster,
            local,
        });
        proptest::option::of(size)
    }

    /// Any entry whose texts consist of `text`.
    pub(crate) fn entries(text: &'static str) -> impl Strategy<Value = Entry> {
        let list = || proptest::collection::vec(text, 0..=LIST_MAX);
        let object = (any::<(bool, bool)>(), (text, text, text, text, text), list()).prop_map(
            |((deleted, changed), (kind, namespace, name, resource_version, kept), faults)| {
                let verb = if deleted { Verb::Deleted } else { Verb::Applied };
                Entry::Object(ObjectEvent {
                    verb,
                    kind,
                    namespace,
                    name,
                    resource_version,
                    changed,
                    faults,
                    kept,
                })
            },
        );
        let change = (text, text, text, sizes(), sizes(), text).prop_map(
            |(family, service_port, protocol, before, after, difference)| {
                Entry::Change(Change { family, service_port, protocol, before, after, difference })
            },
        );
        let commit = (
            (text, text, text, proptest::option::of(text), proptest::option::of(text)),
            any::<[bool; 3]>(),
            any::<[u64; 7]>(),
            list(),
            list(),
        )
            .prop_map(|(texts, flags, numbers, service_ports, mut messages)| {
                messages.retain(|line| !line.is_empty());
                let [full, repaired, verified] = flags;
                let (family, mode, step, reason, error) = texts;
                let [changed, refused, elements, objects, bytes, duration_us, kernel_us] = numbers;
                Entry::Commit(Commit {
                    family,
                    mode,
                    step,
                    reason,
                    full,
                    repaired,
                    verified,
                    changed,
                    service_ports,
                    refused,
                    elements,
                    objects,
                    bytes,
                    messages,
                    duration_us,
                    kernel_us,
                    error,
                })
            });
        let note = (text, text).prop_map(|(about, text)| Entry::Note(Note { about, text }));
        let drift = text.prop_map(|family| Entry::Drift(Drift { family }));
        prop_oneof![object, change, commit, note, drift]
    }

    proptest! {
        #[test]
        fn an_entry_reads_as_it_was_written(micros: u64, entry in entries("\\PC{0,60}")) {
            let at = Duration::from_micros(micros);
            prop_assert_eq!(decode(&encode(at, &entry)), Some((at, entry)));
        }

        #[test]
        fn a_record_is_bounded_and_long_texts_are_cut(entry in entries("é{0,2000}")) {
            let bytes = encode(Duration::MAX, &entry);
            prop_assert!(bytes.len() <= RECORD_MAX, "{}", bytes.len());
            prop_assert!(decode(&bytes).is_some());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            let _ = split_length(&bytes);
        }
    }

    #[test]
    fn words_take_one_byte_and_any_other_text_is_kept() {
        for word in WORDS.into_iter().chain(["", "other"]) {
            let entry = Entry::Drift(Drift { family: word.into() });
            let bytes = encode(Duration::ZERO, &entry);
            assert_eq!(decode(&bytes), Some((Duration::ZERO, entry)));
            assert_eq!(bytes.len() == 3, WORDS.contains(&word), "{word}");
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("aéb", 2), cut("aéb", 3), cut("aéb", 9), cut("", 0)), ("a", "aé", "aéb", ""));
    }
}
