//! Node ports. A number is allocated once for all protocols. Health-check node ports come from the same range.

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::{pool::Pool, random::Random, range::static_band};

/// The range of `--service-node-port-range`, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

/// The reason why a text or pair is not a range of node ports.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodePortRangeError {
    /// The text has none of the three forms.
    #[error("\"{0}\" is not a range of ports; write it like 30000-32767, 30000+2767 or 30000")]
    Malformed(String),
    /// The range begins at port 0, which means *unset* in a Service.
    #[error("a range of node ports begins at 1 or above")]
    Zero,
    /// The end is before the start.
    #[error("the range of node ports ends at {last}, before its start {first}")]
    Backwards {
        /// The start.
        first: u16,
        /// The end.
        last: u16,
    },
}

/// The range of node ports and which of them are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePorts {
    range: NodePortRange,
    pool: Pool,
}

impl NodePortRange {
    /// Creates a range that includes both ends.
    pub fn new(first: u16, last: u16) -> Result<Self, NodePortRangeError> {
        match first {
            0 => Err(NodePortRangeError::Zero),
            _ if last < first => Err(NodePortRangeError::Backwards { first, last }),
            _ => Ok(Self { first, last }),
        }
    }

    /// Returns the first port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// Returns the last port, which is in the range.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Returns the number of ports.
    pub fn size(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)).saturating_add(1)
    }

    /// Returns the number of lowest ports that are reserved for explicit requests (KEP-3668).
    pub fn static_band(self) -> u64 {
        static_band(self.size().into(), 32, 128)
    }

    /// Returns true if the port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for NodePortRange {
    /// 30000-32767.
    fn default() -> Self {
        Self { first: 30_000, last: 32_767 }
    }
}

impl FromStr for NodePortRange {
    type Err = NodePortRangeError;

    /// Parses `a-b`, `a+n` (from a to a + n) or a single port.
    fn from_str(text: &str) -> Result<Self, NodePortRangeError> {
        let malformed = || NodePortRangeError::Malformed(text.to_owned());
        let port = |part: &str| match part.trim() {
            part if part.bytes().all(|byte| byte.is_ascii_digit()) => part.parse().map_err(|_| malformed()),
            _ => Err(malformed()),
        };
        if let Some((first, last)) = text.split_once('-') {
            Self::new(port(first)?, port(last)?)
        } else if let Some((first, more)) = text.split_once('+') {
            let first: u16 = port(first)?;
            Self::new(first, first.checked_add(port(more)?).ok_or_else(malformed)?)
        } else {
            let only = port(text)?;
            Self::new(only, only)
        }
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl NodePorts {
    /// Creates a range in which all ports are free.
    pub fn new(range: NodePortRange) -> Self {
        Self { range, pool: Pool::new(range.size().into(), range.static_band()) }
    }

    /// Returns the range.
    pub fn range(&self) -> NodePortRange {
        self.range
    }

    /// Returns how many ports are taken.
    pub fn taken(&self) -> u64 {
        self.pool.taken()
    }

    /// Returns how many ports are free.
    pub fn free(&self) -> u64 {
        self.pool.free()
    }

    /// Returns true if the port is in the range and taken.
    pub fn is_taken(&self, port: u16) -> bool {
        self.offset(port).is_some_and(|offset| self.pool.is_taken(offset))
    }

    /// Takes the port. Returns false if it is taken or not in the range.
    pub fn take(&mut self, port: u16) -> bool {
        self.offset(port).is_some_and(|offset| self.pool.take(offset))
    }

    /// Frees the port. Returns false if it is free already or not in the range.
    pub fn release(&mut self, port: u16) -> bool {
        self.offset(port).is_some_and(|offset| self.pool.release(offset))
    }

    /// Frees a port that was in use; see [`Pool::retire`].
    pub fn retire(&mut self, port: u16) -> bool {
        self.offset(port).is_some_and(|offset| self.pool.retire(offset))
    }

    /// Finds a free port, which stays free.
    pub fn find(&self, random: &mut dyn Random) -> Option<u16> {
        self.port(self.pool.find(random)?)
    }

    /// Iterates over the taken ports in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.pool.iter().filter_map(|offset| self.port(offset))
    }

    fn offset(&self, port: u16) -> Option<u64> {
        self.range.contains(port).then(|| u64::from(port.saturating_sub(self.range.first)))
    }

    fn port(&self, offset: u64) -> Option<u16> {
        self.range.first.checked_add(u16::try_from(offset).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_bands_of_node_port_ranges() {
        for (text, size, band, dynamic_first, dynamic) in [
            ("30000-32767", 2768, 86, 30_086, 2682),
            ("30000-30015", 16, 0, 30_000, 16),
            ("30000-30016", 17, 16, 30_016, 1),
            ("30000-31023", 1024, 32, 30_032, 992),
            ("30000-32047", 2048, 64, 30_064, 1984),
            ("30000-34095", 4096, 128, 30_128, 3968),
            ("20000-30000", 10_001, 128, 20_128, 9873),
        ] {
            let range: NodePortRange = text.parse().unwrap();
            assert_eq!((range.size(), range.static_band()), (size, band), "{text}");
            let mut ports = NodePorts::new(range);
            let mut seed = fastrand::Rng::with_seed(7);
            for _ in 0..dynamic {
                let port = ports.find(&mut || seed.u64(..)).unwrap();
                assert!(port >= dynamic_first && ports.take(port), "{text}: {port}");
            }
            assert_eq!(ports.free(), band, "{text}");
            let next = ports.find(&mut || seed.u64(..));
            assert_eq!(next.is_some(), band > 0, "{text}");
            assert!(next.is_none_or(|port| port < dynamic_first), "{text}");
        }
    }

    #[test]
    fn three_ways_to_write_a_range() {
        let read = |text: &str| text.parse::<NodePortRange>().map(|range| range.to_string());
        assert_eq!(read("30000-32767").unwrap(), "30000-32767");
        assert_eq!(read("30000+2767").unwrap(), "30000-32767");
        assert_eq!(read("30000").unwrap(), "30000-30000");
        assert_eq!(read("0-10"), Err(NodePortRangeError::Zero));
        assert_eq!(read("10-9"), Err(NodePortRangeError::Backwards { first: 10, last: 9 }));
        for text in ["", "a", "1-", "65535+1", "1-65536", "+5", "-5", "1--5"] {
            assert!(matches!(read(text), Err(NodePortRangeError::Malformed(_))), "{text}");
        }
    }
}
