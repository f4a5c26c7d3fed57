//! Packets that this machine lost on its own: before the network stack or a rule has seen them.

use std::fs;

/// Statistics of the processors' input queues, which all namespaces share. One line for each processor, in hexadecimal
/// (`softnet_seq_show` in `net/core/net-procfs.c`).
const FILE: &str = "/proc/net/softnet_stat";

/// Returns the number of packets that found a full input queue (`net.core.netdev_max_backlog`) since the machine was started.
/// On a busy machine the queues fill up while their kernel threads wait for a processor.
pub(crate) fn drops() -> u64 {
    count(&fs::read_to_string(FILE).unwrap_or_default())
}

fn count(statistics: &str) -> u64 {
    let second = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    statistics.lines().filter_map(second).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_of_all_processors_are_counted() {
        let statistics = "015c6ab6 000000fb 0000001d 00000000\n01674d60 00000091 00000020 00000000\n";
        assert_eq!((count(statistics), count("")), (0xfb + 0x91, 0));
        assert!(fs::read_to_string(FILE).unwrap().lines().all(|line| line.split_whitespace().count() > 8));
    }
}
