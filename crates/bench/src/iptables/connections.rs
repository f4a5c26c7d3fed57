//! Measures `connect()` in iptables mode over the number of Services, in both variants. The agent is the shipped build.

use std::path::Path;

use portolan_iptables::Variant;

use super::name;
use crate::connect::{self, Connections};
use crate::proxy::Proxy;
use crate::stage::Stage;
use crate::table::render_rows;
use crate::workload::Size;

/// The chain by which kubelet tells which variant the node uses.
const HINT: &str = "KUBE-IPTABLES-HINT";

/// The figures of one size and variant.
#[derive(Debug)]
pub(crate) struct Figures {
    size: Size,
    variant: Variant,
    connections: Connections,
}

/// Measures `count` connections at each size in both variants.
pub(crate) fn measure(agent: &Path, sizes: &[Size], count: usize) -> anyhow::Result<Vec<Figures>> {
    let mut figures = Vec::new();
    for &size in sizes {
        for variant in [Variant::Nft, Variant::Legacy] {
            eprintln!("measuring connect() in iptables mode at {size}, {}", name(variant));
            figures.push(measure_one(agent, size, variant, count)?);
        }
    }
    Ok(figures)
}

fn measure_one(agent: &Path, size: Size, variant: Variant, count: usize) -> anyhow::Result<Figures> {
    let stage = Stage::build(size)?;
    for family in ["iptables", "ip6tables"] {
        let program = format!("{family}-{}", name(variant));
        stage.node().output(&program, &["-t", "mangle", "-N", HINT])?;
    }
    let proxy = Proxy::start_in_iptables_mode(agent, &stage)?;
    let connections = connect::measure(&stage, &stage.far, count)?;
    proxy.stop()?;
    Ok(Figures { size, variant, connections })
}

/// Returns the table, with one column for each size and variant.
pub(crate) fn render(figures: &[Figures]) -> String {
    type Row = (&'static str, fn(&Connections) -> String);
    const ROWS: &[Row] =
        &[("through a VIP, p50, us", |it| micros(&it.vip)), ("direct, p50, us", |it| micros(&it.direct))];
    let head = figures.iter().map(|it| format!("{}, {}", it.size, name(it.variant)));
    let mut lines = vec![std::iter::once("connect() in iptables mode".to_owned()).chain(head).collect()];
    lines.extend(ROWS.iter().map(|(name, cell)| {
        let cells = figures.iter().map(|it| cell(&it.connections));
        std::iter::once((*name).to_owned()).chain(cells).collect::<Vec<String>>()
    }));
    render_rows(&lines)
}

fn micros(sample: &crate::statistics::Sample) -> String {
    format!("{:.1}", sample.median().as_secs_f64() * 1e6)
}
