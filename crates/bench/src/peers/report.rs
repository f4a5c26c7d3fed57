//! The tables, one for each mode: a column for each agent at each size, and one for the ratio.

use std::time::Duration;

use super::turn::Turn;
use super::{Figures, Mode, Peer};
use crate::statistics::{Sample, ratio};
use crate::table::render_rows;

/// A row: its name, its figure in the unit that the name has, and the number of decimal places.
struct Row {
    name: &'static str,
    figure: fn(&Figures) -> Option<f64>,
    decimals: usize,
    /// True if the figure itself is a ratio, of a VIP against direct.
    is_ratio: bool,
}

const ROWS: &[Row] = &[
    row("first sync, s", |it| seconds(it.median(|turn| turn.first_sync)?), 2),
    row("- CPU, s", |it| seconds(it.median(|turn| turn.first_processor)?), 2),
    row("one change, from write to connection, median, ms", |it| millis(it.changes()?.median()), 2),
    row("one change, from write to connection, p99, ms", |it| millis(it.changes()?.percentile(99)), 2),
    row("1,000 changes, all in effect after, s", |it| seconds(it.burst(|burst| burst.duration)?), 2),
    row("- CPU, s", |it| seconds(it.burst(|burst| burst.processor)?), 2),
    row("resident high-water after the changes, MiB", Figures::high_water, 1),
    row("connect() through a VIP, median, us", |it| micros(it.vip()?.median()), 1),
    ratio_row("- against direct", |it| Some(ratio(it.vip()?.median(), it.direct()?.median()))),
    row("request and response through a VIP, median, us", |it| micros(it.round_trips().0?.median()), 1),
    ratio_row("- against direct", |it| {
        let (vip, direct) = it.round_trips();
        Some(ratio(vip?.median(), direct?.median()))
    }),
];

const fn row(name: &'static str, figure: fn(&Figures) -> Option<f64>, decimals: usize) -> Row {
    Row { name, figure, decimals, is_ratio: false }
}

const fn ratio_row(name: &'static str, figure: fn(&Figures) -> Option<f64>) -> Row {
    Row { name, figure, decimals: 3, is_ratio: true }
}

/// Returns the tables of all modes that were measured.
pub(crate) fn render(figures: &[Figures]) -> String {
    let of = |mode: Mode| figures.iter().filter(move |it| it.mode == mode).collect::<Vec<_>>();
    let measured = Mode::ALL.into_iter().filter(|&mode| !of(mode).is_empty());
    measured.map(|mode| table(mode, &of(mode))).collect::<Vec<_>>().join("\n")
}

fn table(mode: Mode, figures: &[&Figures]) -> String {
    let pairs: Vec<_> = pairs(figures).collect();
    let mut head = vec![format!("mode {mode}, Services x endpoints")];
    for (kube_proxy, portolan) in &pairs {
        head.push(format!("{}: {}", kube_proxy.size, kube_proxy.peer));
        head.push(portolan.peer.to_string());
        head.push("ratio".to_owned());
    }
    let mut lines = vec![head];
    for row in ROWS {
        let cells = pairs.iter().flat_map(|(kube_proxy, portolan)| row.cells(kube_proxy, portolan));
        lines.push(std::iter::once(row.name.to_owned()).chain(cells).collect());
    }
    render_rows(&lines)
}

/// Returns the figures of kube-proxy and of Portolan at each size.
fn pairs<'a>(figures: &'a [&'a Figures]) -> impl Iterator<Item = (&'a Figures, &'a Figures)> {
    let of = |peer: Peer| figures.iter().copied().filter(move |it| it.peer == peer);
    of(Peer::KubeProxy).zip(of(Peer::Portolan))
}

impl Row {
    /// Returns both figures, and that of kube-proxy divided by that of Portolan.
    fn cells(&self, kube_proxy: &Figures, portolan: &Figures) -> [String; 3] {
        let both = [kube_proxy, portolan];
        let values = both.map(|it| (self.figure)(it));
        let [theirs, ours] = values;
        let divided = match (theirs, ours) {
            (Some(theirs), Some(ours)) if !self.is_ratio && ours > 0.0 => format!("{:.1}", theirs / ours),
            _ => String::new(),
        };
        let [theirs, ours] = [(kube_proxy, theirs), (portolan, ours)].map(|(it, value)| self.cell(it, value));
        [theirs, ours, divided]
    }

    fn cell(&self, figures: &Figures, value: Option<f64>) -> String {
        match (value, figures.exceeded) {
            (Some(value), _) => format!("{value:.*}", self.decimals),
            (None, Some(limit)) if self.name.starts_with("first sync") => {
                format!("not within {}", limit.as_secs())
            }
            (None, _) => "-".to_owned(),
        }
    }
}

impl Figures {
    /// Returns the median over the turns.
    fn median(&self, of: impl Fn(&Turn) -> Duration) -> Option<Duration> {
        (!self.turns.is_empty()).then(|| self.turns.iter().map(of).collect::<Sample>().median())
    }

    /// Returns the values of all turns as one sample.
    fn all(&self, of: impl Fn(&Turn) -> &Sample) -> Option<Sample> {
        let turns = self.turns.iter();
        (!self.turns.is_empty()).then(|| turns.flat_map(|turn| of(turn).values()).collect())
    }

    pub(super) fn changes(&self) -> Option<Sample> {
        self.all(|turn| &turn.changes)
    }

    fn burst(&self, of: impl Fn(&crate::changes::Burst) -> Duration) -> Option<Duration> {
        let bursts: Vec<Duration> =
            self.turns.iter().filter_map(|turn| turn.burst.as_ref().map(&of)).collect();
        (!bursts.is_empty()).then(|| bursts.into_iter().collect::<Sample>().median())
    }

    /// Returns the maximum over the turns, in MiB.
    fn high_water(&self) -> Option<f64> {
        let bytes = self.turns.iter().map(|turn| turn.high_water).max()?;
        // Memory is far below 2^52 bytes.
        Some(u32::try_from(bytes >> 10).map_or(f64::MAX, f64::from) / 1024.0)
    }

    fn vip(&self) -> Option<Sample> {
        self.all(|turn| &turn.connections.vip)
    }

    fn direct(&self) -> Option<Sample> {
        self.all(|turn| &turn.connections.direct)
    }

    fn round_trips(&self) -> (Option<Sample>, Option<Sample>) {
        (self.all(|turn| &turn.round_trips.vip), self.all(|turn| &turn.round_trips.direct))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the figures of rows are optional")]
fn seconds(duration: Duration) -> Option<f64> {
    Some(duration.as_secs_f64())
}

#[expect(clippy::unnecessary_wraps, reason = "the figures of rows are optional")]
fn millis(duration: Duration) -> Option<f64> {
    Some(duration.as_secs_f64() * 1e3)
}

#[expect(clippy::unnecessary_wraps, reason = "the figures of rows are optional")]
fn micros(duration: Duration) -> Option<f64> {
    Some(duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Connections;
    use crate::round_trips::RoundTrips;
    use crate::workload::Size;

    fn sample(micros: u64) -> Sample {
        [Duration::from_micros(micros)].into_iter().collect()
    }

    fn figures(peer: Peer, factor: u64) -> Figures {
        let turn = Turn {
            first_sync: Duration::from_millis(500 * factor),
            first_processor: Duration::from_millis(100 * factor),
            changes: sample(700 * factor),
            burst: None,
            high_water: 8 << 20,
            connections: Connections { vip: sample(22), rule: sample(21), direct: sample(20) },
            round_trips: RoundTrips { vip: sample(33), rule: sample(31), direct: sample(30) },
        };
        Figures { size: Size::new(0, 10), mode: Mode::Nftables, peer, turns: vec![turn], exceeded: None }
    }

    #[test]
    fn each_pair_has_its_ratio() {
        let text = render(&[figures(Peer::KubeProxy, 10), figures(Peer::Portolan, 1)]);
        let line = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            line("mode nftables"),
            "mode nftables, Services x endpoints; 0 x 10: kube-proxy; Portolan; ratio"
        );
        assert_eq!(line("first sync"), "first sync, s; 5.00; 0.50; 10.0");
        assert_eq!(line("median, ms"), "one change, from write to connection, median, ms; 7.00; 0.70; 10.0");
        assert_eq!(line("1,000 changes"), "1,000 changes, all in effect after, s; -; -");
        assert_eq!(line("high-water"), "resident high-water after the changes, MiB; 8.0; 8.0; 1.0");
        assert_eq!(line("against direct"), "- against direct; 1.100; 1.100");
        assert!(!text.contains("iptables"), "{text}");
    }

    #[test]
    fn a_first_sync_beyond_the_limit_is_named() {
        let limit = Some(Duration::from_secs(600));
        let slow = Figures { turns: Vec::new(), exceeded: limit, ..figures(Peer::KubeProxy, 1) };
        let text = render(&[slow, figures(Peer::Portolan, 1)]);
        assert!(text.contains("not within 600 |"), "{text}");
    }
}
