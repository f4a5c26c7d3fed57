//! Keeps another encoding of an object as its difference from the object's JSON. Long texts, such as `managedFields`, are
//! the same in both, so the difference takes little memory, and joining it with the JSON is quick.

/// Shortest part of the JSON that is referred to instead of repeated. A reference takes [`HEAD`] bytes.
const LEAST: usize = 32;
/// Length of the blocks by which equal parts are found. Every part of [`LEAST`] bytes contains a whole block.
const BLOCK: usize = 8;
/// Bytes of the three numbers of a step.
const HEAD: usize = 12;
/// Maximum number of bits of a block's place in the index.
const MOST_BITS: u32 = 16;

/// The difference: steps of three numbers (length of a literal, start and length of a part of the JSON) and the literal.
#[derive(Debug)]
pub(crate) struct Delta(Box<[u8]>);

/// The places of the blocks of a text, by their content. A block may hide an earlier one.
struct Index<'t> {
    text: &'t [u8],
    places: Vec<u32>,
    shift: u32,
}

impl Delta {
    /// Returns the difference of `encoded` from `json`; `None` if it would take more memory than [`most`].
    pub(crate) fn of(encoded: &[u8], json: &[u8]) -> Option<Self> {
        let most = most(json);
        let index = Index::new(json);
        let (mut steps, mut literal, mut at) = (Vec::new(), 0, 0);
        while let Some(rest) = encoded.get(at..).filter(|rest| rest.len() >= LEAST) {
            let Some((back, start, length)) = index.find(rest, encoded.get(literal..at).unwrap_or_default())
            else {
                at += 1;
                if steps.len() + (at - literal) > most {
                    return None;
                }
                continue;
            };
            step(&mut steps, encoded.get(literal..at - back)?, (start, length))?;
            at = at - back + length;
            literal = at;
        }
        step(&mut steps, encoded.get(literal..)?, (0, 0))?;
        (steps.len() <= most).then(|| Self(steps.into_boxed_slice()))
    }

    /// Appends the encoding. `json` must be the text that the difference was made from.
    pub(crate) fn put(&self, out: &mut Vec<u8>, json: &[u8]) {
        for (literal, start, length) in self.steps() {
            out.extend_from_slice(literal);
            out.extend_from_slice(json.get(start..start + length).unwrap_or_default());
        }
    }

    /// Returns the steps: a literal, and the start and the length of the part of the JSON that follows it.
    fn steps(&self) -> impl Iterator<Item = (&[u8], usize, usize)> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<HEAD>()?;
            let ([literal, start, length], _) = head.as_chunks::<4>() else { return None };
            let [literal, start, length] =
                [literal, start, length].map(|bytes| u32::from_le_bytes(*bytes) as usize);
            let (text, after) = after.split_at_checked(literal)?;
            rest = after;
            Some((text, start, length))
        })
    }
}

/// Returns the maximum length of a difference from `json`, which bounds the memory of what is kept.
fn most(json: &[u8]) -> usize {
    json.len() / 3 * 2
}

/// Appends a step. Returns `None` if a number is too large.
fn step(steps: &mut Vec<u8>, literal: &[u8], (start, length): (usize, usize)) -> Option<()> {
    for number in [literal.len(), start, length] {
        steps.extend_from_slice(&u32::try_from(number).ok()?.to_le_bytes());
    }
    steps.extend_from_slice(literal);
    Some(())
}

impl<'t> Index<'t> {
    fn new(text: &'t [u8]) -> Self {
        let blocks = text.len() / BLOCK;
        let bits = (usize::BITS - blocks.leading_zeros()).clamp(1, MOST_BITS);
        let mut index = Self { text, places: vec![u32::MAX; 1 << bits], shift: u64::BITS - bits };
        for (number, block) in text.chunks_exact(BLOCK).enumerate() {
            let slot = index.slot(block);
            if let (Some(place), Ok(start)) = (index.places.get_mut(slot), u32::try_from(number * BLOCK)) {
                *place = start;
            }
        }
        index
    }

    fn slot(&self, block: &[u8]) -> usize {
        let word = block.first_chunk().map_or(0, |block| u64::from_le_bytes(*block));
        // The factor of Fibonacci hashing: 2^64 divided by the golden ratio.
        usize::try_from(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift).unwrap_or_default()
    }

    /// Returns the part of the text that equals the beginning of `rest`, extended backwards over the end of `before`: the
    /// number of bytes before, and its start and length. `None` if it is shorter than [`LEAST`].
    fn find(&self, rest: &[u8], before: &[u8]) -> Option<(usize, usize, usize)> {
        let place = *self.places.get(self.slot(rest))? as usize;
        let (earlier, later) = self.text.split_at_checked(place)?;
        let forward = later.iter().zip(rest).take_while(|(one, other)| one == other).count();
        if forward < BLOCK {
            return None;
        }
        let pairs = earlier.iter().rev().zip(before.iter().rev());
        let back = pairs.take_while(|(one, other)| one == other).count();
        (back + forward >= LEAST).then(|| (back, place - back, back + forward))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(delta: &Delta, json: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        delta.put(&mut out, json);
        assert!(out.starts_with(b"before"));
        out.split_off(6)
    }

    #[test]
    fn long_texts_are_not_repeated() {
        let fields = r#"{"f:spec":{"f:ports":{".":{},"k:{\"port\":80}":{".":{},"f:port":{}}}}}"#.repeat(10);
        let json = format!(r#"{{"a":1,"fields":{fields},"name":"web"}}"#);
        let encoded = [b"\x0a\x03web\x12", fields.as_bytes(), b"\x18\x01"].concat();
        let delta = Delta::of(&encoded, json.as_bytes()).unwrap();
        assert!(delta.0.len() < 100, "{}", delta.0.len());
        assert_eq!(joined(&delta, json.as_bytes()), encoded);
    }

    #[test]
    fn a_difference_that_is_not_small_is_not_kept() {
        let json = r#"{"addresses":["10.0.0.1","10.0.0.2","10.0.0.3"]}"#;
        let encoded = b"\x0a\x0810.0.0.1\x0a\x0810.0.0.2\x0a\x0810.0.0.3";
        assert!(Delta::of(encoded, json.as_bytes()).is_none());
        assert!(Delta::of(b"", b"").is_none());
    }

    proptest! {
        #[test]
        fn the_encoding_comes_back(
            json in prop::collection::vec(0_u8..4, 0..2000),
            parts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..600, prop::collection::vec(any::<u8>(), 0..20)), 0..6),
        ) {
            let mut encoded = Vec::new();
            for (start, length, literal) in parts {
                encoded.extend(literal);
                let start = if json.is_empty() { 0 } else { start.index(json.len()) };
                encoded.extend(json.iter().skip(start).take(length));
            }
            if let Some(delta) = Delta::of(&encoded, &json) {
                prop_assert!(delta.0.len() <= most(&json));
                prop_assert_eq!(joined(&delta, &json), encoded);
            }
        }
    }
}
