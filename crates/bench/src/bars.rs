//! The bars: limits that the figures must meet.

use std::fmt;

use crate::connect::Connections;
use crate::run::Figures;
use crate::statistics::{Sample, ratio};
use crate::workload::Size;

const SMALL: Size = Size::new(100, 10);
const USUAL: Size = Size::new(10_000, 10);
const MANY: Size = Size::new(30_000, 4);
const LARGE: Size = Size::new(50_000, 10);

/// A limit, and the measured value.
#[derive(Debug)]
pub(crate) struct Bar {
    what: String,
    unit: &'static str,
    limit: f64,
    is_least: bool,
    measured: Option<f64>,
    /// True if the bar is met; `None` if its size was not measured.
    pub(crate) met: Option<bool>,
}

impl Bar {
    /// Creates a bar that is met if `measured` is at most `limit`.
    pub(crate) fn new(
        what: impl Into<String>,
        unit: &'static str,
        limit: f64,
        measured: Option<f64>,
    ) -> Self {
        let met = measured.map(|value| value <= limit);
        Self { what: what.into(), unit, limit, is_least: false, measured, met }
    }

    /// Creates a bar that is met if `measured` is at least `limit`.
    pub(crate) fn at_least(
        what: impl Into<String>,
        unit: &'static str,
        limit: f64,
        measured: Option<f64>,
    ) -> Self {
        let met = measured.map(|value| value >= limit);
        Self { what: what.into(), unit, limit, is_least: true, measured, met }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, unit, limit, .. } = self;
        let bar = if self.is_least { "bar: at least " } else { "bar: " };
        match (self.measured, self.met) {
            (Some(value), Some(true)) => write!(f, "pass  {what}: {value:.3}{unit} ({bar}{limit}{unit})"),
            (Some(value), _) => write!(f, "FAIL  {what}: {value:.3}{unit} ({bar}{limit}{unit})"),
            (None, _) => write!(f, "----  {what}: not measured ({bar}{limit}{unit})"),
        }
    }
}

/// Compares the figures with the bars.
pub(crate) fn judge(figures: &[Figures]) -> Vec<Bar> {
    let at = |size: Size| figures.iter().find(move |it| it.size == size);
    let end_to_end = |size: Size| at(size).map(|it| it.changes.median().as_secs_f64() * 1e3);
    let scaling = end_to_end(USUAL).zip(end_to_end(SMALL)).map(|(usual, small)| usual / small);
    let mut bars = vec![
        Bar::new(
            format!("kernel commit of one change at {LARGE}, median"),
            " ms",
            0.1,
            at(LARGE).map(|it| it.commits.changes.median().as_secs_f64() * 1e3),
        ),
        Bar::new(format!("one change end to end at {USUAL}, median"), " ms", 3.0, end_to_end(USUAL)),
        Bar::new(format!("the same against {SMALL}"), " times", 1.5, scaling),
        Bar::new(
            format!("start to fully programmed at {USUAL}"),
            " s",
            2.0,
            at(USUAL).map(|it| it.cold.duration.as_secs_f64()),
        ),
        Bar::new(
            format!("CPU for 1,000 changes at {USUAL}"),
            " s",
            1.0,
            at(USUAL).map(|it| it.burst.processor.max(it.burst_at_once.processor).as_secs_f64()),
        ),
    ];
    bars.push(Bar::new(
        format!("10,000 changes at once at {USUAL}, all in effect"),
        " s",
        0.5,
        at(USUAL).map(|it| it.at_once.as_secs_f64()),
    ));
    bars.push(Bar::new(
        format!("restart with nothing to write at {LARGE}"),
        " s",
        1.5,
        at(LARGE).map(|it| it.warm.duration.as_secs_f64()),
    ));
    bars.push(Bar::new(
        format!("a change during the comparison of a restart at {LARGE}, p99"),
        " ms",
        10.0,
        at(LARGE).map(|it| it.restarts.waits.percentile(99).as_secs_f64() * 1e3),
    ));
    bars.push(Bar::new(
        format!("one change end to end at {LARGE}, p99"),
        " ms",
        1.5,
        at(LARGE).map(|it| it.changes.percentile(99).as_secs_f64() * 1e3),
    ));
    bars.extend(
        [(USUAL, 32.0), (MANY, 40.0), (LARGE, 48.0)].map(|(size, limit)| memory(size, limit, at(size))),
    );
    bars.extend(at(USUAL).into_iter().flat_map(|it| {
        let refused = |from: &str, sample: &Sample| {
            let what = format!("refused connect() from {from} at {USUAL}, median");
            Bar::new(what, " ms", 0.1, Some(sample.median().as_secs_f64() * 1e3))
        };
        let trips = |place: &str, vip: &Sample, direct: &Sample| {
            let what =
                format!("request and response with a pod of {place}, VIP against direct at {USUAL}, p50");
            Bar::new(what, " times", 1.01, Some(ratio(vip.median(), direct.median())))
        };
        let (far, near) = (&it.far_round_trips, &it.near_round_trips);
        let Connections { vip, direct, .. } = &it.node_port;
        [
            Bar::new(
                format!("connect() to a node port with policy Local, against direct at {USUAL}, p50"),
                " times",
                1.02,
                Some(ratio(vip.median(), direct.median())),
            ),
            refused("a pod", &it.refusals.from_pod),
            refused("the node", &it.refusals.from_node),
            trips("another node", &far.vip, &far.direct),
            trips("its own node", &near.vip, &near.direct),
        ]
    }));
    bars.extend(figures.iter().flat_map(connections));
    bars
}

/// Returns the bar for the maximum memory of both proxies.
fn memory(size: Size, limit: f64, figures: Option<&Figures>) -> Bar {
    let measured = figures.map(|it| f64::from(it.high_water_cold.max(it.high_water_warm)) / 1024.0);
    Bar::new(format!("resident high-water at {size}"), " MiB", limit, measured)
}

fn connections(figures: &Figures) -> impl Iterator<Item = Bar> {
    let places = [("another node", &figures.far), ("its own node", &figures.near)];
    places.into_iter().flat_map(|(place, Connections { vip, direct, .. })| {
        [("p50", 50, 1.05), ("p99", 99, 1.2)].map(|(name, percent, limit)| {
            let what =
                format!("connect() to a pod of {place}, VIP against direct at {}, {name}", figures.size);
            Bar::new(what, " times", limit, Some(ratio(vip.percentile(percent), direct.percentile(percent))))
        })
    })
}
