//! Sets of HTTP statuses.

use std::fmt;
use std::ops::RangeInclusive;

/// Most ranges of one set.
const MOST: usize = 50;

/// The HTTP statuses that pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses {
    ranges: Vec<RangeInclusive<u16>>,
    is_default: bool,
}

impl Default for Statuses {
    /// The statuses of the kubelet's probes (`pkg/probe/http`).
    fn default() -> Self {
        Self { ranges: vec![200..=399], is_default: true }
    }
}

impl Statuses {
    /// Reads statuses and ranges with commas. Returns `None` if the text is not such a list.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let ranges: Option<Vec<_>> = text.split(',').take(MOST.saturating_add(1)).map(range).collect();
        let ranges = ranges.filter(|ranges| ranges.len() <= MOST)?;
        Some(Self { ranges, is_default: false })
    }

    /// Returns true if an answer with this status passes.
    pub fn contains(&self, status: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(&status))
    }

    /// Returns true if an answer with this status decides although it is a redirect: the Service lists it.
    pub fn lists(&self, status: u16) -> bool {
        !self.is_default && self.contains(status)
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let (start, end) = (range.start(), range.end());
            if start == end { write!(f, "{comma}{start}") } else { write!(f, "{comma}{start}-{end}") }?;
        }
        Ok(())
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (start, end) = text.trim().split_once('-').unwrap_or((text.trim(), text.trim()));
    let (start, end) = (status(start)?, status(end)?);
    (start <= end).then_some(start..=end)
}

fn status(text: &str) -> Option<u16> {
    let status = text.parse().ok()?;
    (100..=599).contains(&status).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_statuses() {
        let statuses = Statuses::parse("200, 204,300-302").unwrap();
        assert_eq!(statuses.to_string(), "200,204,300-302");
        for (status, passes) in
            [(200, true), (201, false), (204, true), (300, true), (302, true), (303, false)]
        {
            assert_eq!(statuses.contains(status), passes, "{status}");
            assert_eq!(statuses.lists(status), passes, "{status}");
        }
        for text in ["", "99", "600", "300-200", "200-", "abc", "200,,204", "-1"] {
            assert_eq!(Statuses::parse(text), None, "{text}");
        }
        assert_eq!(Statuses::parse(&vec!["200"; 51].join(",")), None);
        assert!(Statuses::parse(&vec!["200"; 50].join(",")).is_some());
    }

    #[test]
    fn the_default_passes_redirects_without_listing_them() {
        let statuses = Statuses::default();
        assert!(statuses.contains(302) && !statuses.lists(302) && !statuses.contains(400));
    }
}
