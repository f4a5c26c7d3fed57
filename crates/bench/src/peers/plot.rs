//! The plot: the time of one change over the number of Services, for both agents in both modes, as SVG.
//!
//! The vertical axis is logarithmic. A point is a median, and the line above it ends at the 99th percentile.

use std::fmt::Write as _;

use super::{Figures, Mode, Peer};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// The area of the lines.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 520.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 340.0;
/// Distance of the first and the last size from the edges of the area.
const INSET: f64 = 40.0;
/// Distance between the points of two lines at one size, so that they do not hide each other.
const APART: f64 = 5.0;

/// One line: a point for each size at which a figure exists.
struct Line {
    label: String,
    colour: &'static str,
    is_dashed: bool,
    points: Vec<Point>,
}

/// The place of a size, and its times in milliseconds.
struct Point {
    place: usize,
    median: f64,
    p99: f64,
}

/// Returns the plot.
pub(crate) fn draw(figures: &[Figures]) -> String {
    let mut sizes: Vec<usize> = figures.iter().map(|it| it.size.services).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let lines: Vec<Line> = Mode::ALL
        .into_iter()
        .flat_map(|mode| Peer::BOTH.map(|peer| line(figures, &sizes, mode, peer)))
        .filter(|line| !line.points.is_empty())
        .collect();
    let all = lines.iter().flat_map(|line| &line.points);
    let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), point| {
        (low.min(point.median), high.max(point.p99.max(point.median)))
    });
    let decades = if low > high { (-1, 1) } else { (decade(low, f64::floor), decade(high, f64::ceil)) };
    let axis = Axis { from: decades.0, to: decades.1.max(decades.0.saturating_add(1)), sizes: sizes.len() };
    // Writing to a String cannot fail.
    let mut text = String::new();
    let _ = frame(&mut text, &axis, &sizes);
    for (number, line) in lines.iter().enumerate() {
        let _ = draw_line(&mut text, &axis, line, number);
    }
    text.push_str("</svg>\n");
    text
}

fn line(figures: &[Figures], sizes: &[usize], mode: Mode, peer: Peer) -> Line {
    let point = |(place, services): (usize, &usize)| {
        let mut of = figures.iter().filter(|it| it.mode == mode && it.peer == peer);
        let changes = of.find(|it| it.size.services == *services)?.changes()?;
        let millis = |percent| (changes.percentile(percent).as_secs_f64() * 1e3).max(0.001);
        Some(Point { place, median: millis(50), p99: millis(99) })
    };
    Line {
        label: format!("{peer}, {mode}"),
        colour: if peer == Peer::Portolan { "#0b6e4f" } else { "#b3402a" },
        is_dashed: mode == Mode::Iptables,
        points: sizes.iter().enumerate().filter_map(point).collect(),
    }
}

/// The scales. The vertical one goes from one power of ten to another.
struct Axis {
    from: i32,
    to: i32,
    sizes: usize,
}

impl Axis {
    fn x(&self, place: usize) -> f64 {
        let last = float(self.sizes.saturating_sub(1).max(1));
        LEFT + INSET + (RIGHT - LEFT - 2.0 * INSET) * float(place) / last
    }

    fn y(&self, millis: f64) -> f64 {
        let share = (millis.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        BOTTOM - (BOTTOM - TOP) * share
    }
}

/// Draws the background, the axes and their labels.
fn frame(text: &mut String, axis: &Axis, sizes: &[usize]) -> std::fmt::Result {
    writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <title>Time of one change over the number of Services</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">One change, from the write to the first connection: median, and line to p99</text>"
    )?;
    for power in axis.from..=axis.to {
        let y = axis.y(10_f64.powi(power));
        writeln!(text, "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#ddd\"/>")?;
        writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} ms</text>",
            LEFT - 8.0,
            y + 4.0,
            {
                let places = usize::try_from(-power).unwrap_or(0);
                format!("{:.places$}", 10_f64.powi(power))
            }
        )?;
    }
    for (place, services) in sizes.iter().enumerate() {
        let (x, y) = (axis.x(place), BOTTOM + 22.0);
        writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{services}</text>")?;
    }
    let (x, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 44.0);
    writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">Services</text>")
}

/// Draws a line with its points, and its label at the right.
fn draw_line(text: &mut String, axis: &Axis, line: &Line, number: usize) -> std::fmt::Result {
    let Line { label, colour, is_dashed, points } = line;
    let dashes = if *is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    let x = |point: &Point| axis.x(point.place) + APART * float(number);
    let path: Vec<String> =
        points.iter().map(|point| format!("{:.1} {:.1}", x(point), axis.y(point.median))).collect();
    writeln!(
        text,
        "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
        path.join("L")
    )?;
    for point in points {
        let (x, low, high) = (x(point), axis.y(point.median), axis.y(point.p99));
        writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{low:.1}\" r=\"4\" fill=\"{colour}\"/>")?;
        writeln!(text, "<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{colour}\"/>")?;
    }
    let (at, y) = (RIGHT + 16.0, TOP + 22.0 * float(number));
    writeln!(text, "<path d=\"M{at} {y:.1}h28\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>")?;
    writeln!(text, "<text x=\"{:.1}\" y=\"{:.1}\">{label}</text>", at + 36.0, y + 4.0)
}

/// Returns the power of ten below or above a time.
#[expect(clippy::cast_possible_truncation, reason = "the logarithm of a time in milliseconds is small")]
fn decade(millis: f64, round: fn(f64) -> f64) -> i32 {
    round(millis.log10()) as i32
}

/// Converts a small number.
fn float(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peers::turn::Turn;
    use crate::statistics::Sample;
    use crate::workload::Size;

    fn figures(services: usize, mode: Mode, peer: Peer, millis: [u64; 2]) -> Figures {
        let changes: Sample = millis.into_iter().map(Duration::from_millis).collect();
        let turn = Turn {
            first_sync: Duration::ZERO,
            first_processor: Duration::ZERO,
            changes,
            burst: None,
            high_water: 0,
            connections: crate::connect::Connections::default(),
            round_trips: crate::round_trips::RoundTrips::default(),
        };
        Figures { size: Size::new(services, 10), mode, peer, turns: vec![turn], exceeded: None }
    }

    #[test]
    fn a_time_is_at_its_height() {
        let text = draw(&[
            figures(0, Mode::Nftables, Peer::Portolan, [1, 10]),
            figures(1_000, Mode::Nftables, Peer::Portolan, [1, 10]),
            figures(0, Mode::Iptables, Peer::KubeProxy, [100, 1_000]),
        ]);
        // One millisecond is at the bottom of the scale, and a second at its top.
        assert!(
            text.contains("<path d=\"M120.0 340.0L480.0 340.0\" fill=\"none\" stroke=\"#0b6e4f\""),
            "{text}"
        );
        assert!(text.contains("V50.0\" stroke=\"#b3402a\"/>"), "{text}");
        for label in [">1 ms<", ">1000 ms<", ">1000</text>", ">Portolan, nftables<", ">kube-proxy, iptables<"]
        {
            assert!(text.contains(label), "{label}: {text}");
        }
        assert!(!text.contains("Portolan, iptables"), "{text}");
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    }

    #[test]
    fn without_figures_there_are_axes_only() {
        let text = draw(&[]);
        assert!(text.contains("0.1 ms") && !text.contains("<circle"), "{text}");
    }
}
