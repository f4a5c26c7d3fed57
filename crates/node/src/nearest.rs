//! Suggestions for misspelled words.

/// Returns the word among `known` that is nearest to `written`, if it is near enough: equal except for case, at a
/// distance of at most a third of its letters (Levenshtein) and at most three, or the only one that begins with
/// `written`, if that has at least four letters.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Such a long text is no misspelling, and the comparison is quadratic.
    if written.len() > 80 {
        return None;
    }
    let lower = written.to_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    let scored = known.iter().map(|word| (distance(&lower, &word.to_lowercase()), *word));
    let (distance, word) = scored.min_by_key(|(distance, _)| *distance)?;
    if distance <= 3.min(word.chars().count().div_ceil(3)) {
        return Some(word);
    }
    let mut longer = known.into_iter().filter(|word| word.to_lowercase().starts_with(&lower));
    let only = longer.next().filter(|_| lower.chars().count() >= 4);
    only.filter(|_| longer.next().is_none())
}

/// Returns how many letters must be added, dropped or replaced to turn one word into the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = index;
        let mut before = index + 1;
        for (slot, other) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = *slot;
            *slot = replaced.min(diagonal + 1).min(before + 1);
            before = *slot;
        }
    }
    // The first slot stays 0, so an empty right word needs its own case.
    if right.is_empty() { left.chars().count() } else { row.last().copied().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let table = [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("abc", "abc", 0), ("abc", "axc", 1)];
        for (left, right, want) in table {
            assert_eq!(distance(left, right), want, "{left} {right}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("sunday", "saturday"), 3);
    }

    #[test]
    fn near_words_are_suggested() {
        let known = ["clusterCIDR", "mode", "nodePortAddresses"];
        assert_eq!(nearest("clusterCidr", known), Some("clusterCIDR"));
        assert_eq!(nearest("nodePortAddress", known), Some("nodePortAddresses"));
        assert_eq!(nearest("mod", known), Some("mode"));
        assert_eq!(nearest("kind", known), None);
        assert_eq!(nearest("nodeport", known), Some("nodePortAddresses"));
        assert_eq!(nearest("nod", ["nodePortAddresses"]), None, "too short");
        assert_eq!(nearest("nodeport", ["nodePortAddresses", "nodePortStuffAndMore"]), None, "two of them");
        assert_eq!(nearest("x", []), None);
        assert_eq!(nearest(&"m".repeat(81), known), None);
    }
}
