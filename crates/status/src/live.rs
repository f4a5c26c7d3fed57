//! The live view: a state document on a screen of any size, with rates.
//!
//! Pure: [`Rates`] gets the documents with the times at which they came, and [`screen`] returns lines. How they reach a
//! terminal is not known here. New connections of Services are in a document of their own ([`ServiceRates`]).

use std::collections::VecDeque;

use crate::format::{age, columns, one_line, percent, short};
use crate::{AgentState, Family, RecordedEvent, ServiceRates, Sync, problems, text};

/// Seconds over which rates are measured.
const SPAN: f64 = 60.0;
/// How many syncs of a family are drawn.
const BARS: usize = 60;
/// How many events are shown if syncs need the room, too.
const EVENTS: usize = 4;
/// The height from which the busiest Services are a table.
const TABLE_FROM: usize = 32;
/// How many lines more make room for one more Service in the table.
const LINES_PER_SERVICE: usize = 2;
/// How many problems are shown.
const PROBLEMS: usize = 4;
/// Characters that fill a cell from the bottom by eighths.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The bar of a failed sync.
const FAILED: char = '×';
/// Seconds of the shortest and the longest sync that a bar distinguishes: 100 µs and 10 s, on a logarithmic scale.
const SCALE: (f64, f64) = (1e-4, 10.0);

/// How a line is to be emphasised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// Not at all.
    #[default]
    Plain,
    /// As a heading.
    Head,
    /// As good.
    Good,
    /// As bad.
    Bad,
}

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// How it looks. What it means is in the text, too.
    pub look: Look,
    /// The text: no longer than the screen is wide, and without control characters.
    pub text: String,
}

/// What was done per minute, from successive documents.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Time in seconds, syncs and changes since the start of the agent.
    seen: VecDeque<(f64, u64, u64)>,
    started: String,
}

impl Rates {
    /// Adds a document that came at this time, in seconds of any clock that does not go back.
    pub fn add(&mut self, at: f64, state: &AgentState) {
        if self.started != state.agent.started.at {
            // Another process counts from 0.
            self.seen.clear();
            self.started.clone_from(&state.agent.started.at);
        }
        let sum = |of: fn(&Family) -> u64| state.families.iter().map(of).fold(0, u64::saturating_add);
        self.seen.push_back((at, sum(|family| family.totals.syncs), sum(|family| family.totals.changed)));
        // The newest one that is older than the span stays: rates are measured from it.
        while self.seen.get(1).is_some_and(|(then, ..)| at - then >= SPAN) {
            self.seen.pop_front();
        }
    }

    /// Returns syncs and changes of Service ports per minute. `None` before there are two documents of one process.
    pub fn per_minute(&self) -> Option<(f64, f64)> {
        let ((first, syncs, changes), (last, more_syncs, more_changes)) =
            (self.seen.front()?, self.seen.back()?);
        let minutes = (last - first) / 60.0;
        #[expect(clippy::cast_precision_loss, reason = "the difference is small")]
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / minutes;
        (minutes > 0.0).then(|| (rate(*syncs, *more_syncs), rate(*changes, *more_changes)))
    }
}

/// Returns the lines of a screen. `busiest` are the last rates of Services, if there are any; `lost` says why there is no newer
/// state.
pub fn screen(
    state: &AgentState,
    rates: &Rates,
    busiest: Option<&ServiceRates>,
    lost: Option<&str>,
    (width, height): (usize, usize),
) -> Vec<Line> {
    let mut lines = vec![headline(state)];
    if let Some(lost) = lost {
        lines.extend(wrapped(&format!("No answer: {}", one_line(lost)), width));
    }
    for problem in state.problems.iter().take(PROBLEMS) {
        lines.extend(wrapped(&format!("! {}", problem.text), width));
    }
    let more = state.problems.len().saturating_sub(PROBLEMS);
    lines.extend((more > 0).then(|| line(Look::Bad, format!("! and {more} more problems"))));
    lines.extend(facts(state, rates).into_iter().map(|text| line(Look::Plain, text)));
    let in_table = height.checked_sub(TABLE_FROM).map_or(0, |more| more / LINES_PER_SERVICE + 2);
    lines.extend(busiest.map(|busiest| line(Look::Plain, connections(busiest, in_table == 0, width))));
    if !state.families.is_empty() {
        lines.push(Line::default());
        lines.extend(table("", &families(state)));
        lines.push(Line::default());
        lines.push(line(Look::Head, "Sync latency, the newest on the right".into()));
        lines.extend(state.families.iter().map(|family| line(Look::Plain, latency(family, width))));
    }
    lines.extend(busiest.map(|busiest| busiest_services(busiest, in_table)).unwrap_or_default());
    // One line is for the keys, two for the headings with an empty line before each.
    let room = height.saturating_sub(lines.len()).saturating_sub(1);
    let events = newest(state, |family| &family.events, |event| event.at.age_seconds);
    let event_rows = events.len().min(EVENTS).min(room.saturating_sub(2));
    let sync_room = room.saturating_sub(if event_rows > 0 { event_rows.saturating_add(2) } else { 0 });
    lines.extend(syncs(state, sync_room.saturating_sub(3)));
    if event_rows > 0 {
        lines.push(Line::default());
        lines.push(line(Look::Head, "Events".into()));
        let row = |(family, event): &(&Family, &RecordedEvent)| {
            let times = if event.times > 1 { format!(" ({} times)", event.times) } else { String::new() };
            vec![age(event.at.age_seconds), family.family.clone(), format!("{}{times}", event.text)]
        };
        let rows: Vec<_> = events.iter().take(event_rows).map(row).collect();
        lines.extend(columns("  ", &rows).into_iter().map(|text| line(Look::Plain, text)));
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(line(Look::Plain, "q quits".into()));
    lines.truncate(height);
    for line in &mut lines {
        line.text = fitting(&line.text, width);
    }
    lines
}

fn line(look: Look, text: String) -> Line {
    Line { look, text }
}

/// Returns a text that is bad in as many lines as it needs.
fn wrapped(text: &str, width: usize) -> Vec<Line> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let length = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(last) if length(last).saturating_add(length(word)) < width => {
                last.push(' ');
                last.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(|text| line(Look::Bad, text)).collect()
}

/// Returns a text without control characters, and no longer than the width.
fn fitting(text: &str, width: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(width).collect()
}

fn headline(state: &AgentState) -> Line {
    let (node, mode) = (&state.agent.node, text::mode(state));
    if state.in_sync {
        let since = text::compared(state).map(|since| format!(", compared {} ago", age(since)));
        let what = if problems::is_cut_off(state) { " with the last known state" } else { "" };
        return line(Look::Good, format!("{node}: in sync{what} ({mode}{})", since.unwrap_or_default()));
    }
    line(Look::Bad, format!("{node}: NOT IN SYNC: the kernel may lack changes of Services ({mode})"))
}

fn facts(state: &AgentState, rates: &Rates) -> Vec<String> {
    let rate = rates.per_minute().map_or_else(
        || "no rates yet".to_owned(),
        |(syncs, changes)| format!("{changes:.1} changes/min, {syncs:.1} syncs/min"),
    );
    let mut lines = vec![text::health(state), format!("{}; {rate}", text::objects(state))];
    let silences: Vec<f64> = state.watches.iter().filter_map(|watch| watch.age_seconds).collect();
    let heard = if silences.len() < state.watches.len() {
        "API server: not listed completely".to_owned()
    } else {
        let least = silences.into_iter().fold(f64::INFINITY, f64::min);
        format!("API server: heard {} ago", age(least))
    };
    let mut parts = vec![heard];
    if let Some(conntrack) = &state.conntrack {
        let (entries, max) = (conntrack.entries, conntrack.max);
        parts.push(format!("conntrack {entries} of {max} ({}%)", percent(entries, max)));
    }
    if let Some(relay) = &state.relay {
        parts.push(format!("relay {} connections, {} flows", relay.connections, relay.flows));
    }
    lines.push(parts.join("; "));
    lines
}

/// Returns the rate of new connections, with as many of the busiest Services as fit if there is no table of them.
fn connections(busiest: &ServiceRates, with_services: bool, width: usize) -> String {
    let Some(all) = busiest.per_second else {
        let why = busiest.not_counted.as_ref().map_or_else(|| "no rates yet".to_owned(), |why| one_line(why));
        return format!("New connections: {why}");
    };
    let mut text = format!("New connections: {all:.1}/s");
    let mut separator = "; ";
    for service in busiest.services.iter().take_while(|_| with_services) {
        let part = format!("{separator}{}/{} {:.1}", service.namespace, service.name, service.per_second);
        if text.chars().count().saturating_add(part.chars().count()) > width {
            break;
        }
        text.push_str(&part);
        separator = ", ";
    }
    text
}

/// Returns the busiest Services below their heading, in this number of rows.
fn busiest_services(busiest: &ServiceRates, rows: usize) -> Vec<Line> {
    if rows == 0 || busiest.services.is_empty() {
        return Vec::new();
    }
    let head = format!("Busiest of {} Services with new connections, per second", busiest.active);
    let mut lines = vec![Line::default(), line(Look::Head, head)];
    let row = |service: &crate::ServiceRate| {
        vec![format!("{}/{}", service.namespace, service.name), format!("{:.1}", service.per_second)]
    };
    let rows: Vec<_> = busiest.services.iter().take(rows).map(row).collect();
    lines.extend(columns("  ", &rows).into_iter().map(|text| line(Look::Plain, text)));
    lines
}

fn families(state: &AgentState) -> Vec<Vec<String>> {
    let head = ["FAMILY", "STATE", "SINCE", "SERVICES", "PORTS", "ENDPOINTS", "LOCAL", "WAITING", "DRIFT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(state.families.iter().map(|family| {
        vec![
            family.family.clone(),
            text::sync_state(family).to_owned(),
            family.since.as_ref().map_or_else(|| "-".to_owned(), |since| age(since.age_seconds)),
            family.services.to_string(),
            family.service_ports.to_string(),
            family.endpoints.to_string(),
            family.local_endpoints.to_string(),
            family.pending.to_string(),
            family.drift.repaired.to_string(),
        ]
    }));
    rows
}

/// Returns rows as lines. The first row is the heading.
fn table(indent: &str, rows: &[Vec<String>]) -> Vec<Line> {
    let mut lines: Vec<Line> =
        columns(indent, rows).into_iter().map(|text| line(Look::Plain, text)).collect();
    if let Some(head) = lines.first_mut() {
        head.look = Look::Head;
    }
    lines
}

/// Returns the last syncs of a family as bars, the oldest first, and the slowest one.
fn latency(family: &Family, width: usize) -> String {
    let mut syncs: Vec<&Sync> = family.syncs.iter().chain(&family.failures).collect();
    syncs.sort_by(|one, other| one.ended.age_seconds.total_cmp(&other.ended.age_seconds));
    // The name, two blanks and the text behind the bars.
    syncs.truncate(BARS.min(width.saturating_sub(24)));
    let slowest = syncs.iter().map(|sync| sync.duration_seconds).fold(0.0, f64::max);
    let bars: String = syncs.iter().rev().map(|sync| bar(sync)).collect();
    if syncs.is_empty() {
        return format!("{}  no sync yet", family.family);
    }
    format!("{}  {bars}  max {}", family.family, short(slowest))
}

fn bar(sync: &Sync) -> char {
    if sync.error.is_some() {
        return FAILED;
    }
    let (least, most) = (SCALE.0.log10(), SCALE.1.log10());
    let part = (sync.duration_seconds.max(SCALE.0).log10() - least) / (most - least);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7")]
    let level = (part.clamp(0.0, 1.0) * 7.0).round() as usize;
    LEVELS.get(level).copied().unwrap_or('█')
}

/// Returns the newest syncs and failures below their heading, in this number of rows.
fn syncs(state: &AgentState, rows: usize) -> Vec<Line> {
    let mut all = text::newest_syncs(state);
    if rows == 0 || all.is_empty() {
        return Vec::new();
    }
    all.truncate(rows);
    let mut lines = vec![Line::default(), line(Look::Head, "Last syncs".into())];
    lines.extend(table("  ", &text::sync_rows(&all)));
    for (line, (_, sync)) in lines.iter_mut().skip(3).zip(&all) {
        line.look = if sync.error.is_some() { Look::Bad } else { Look::Plain };
    }
    lines
}

/// Returns one kind of record of all families, the newest first.
fn newest<'a, T>(
    state: &'a AgentState,
    of: impl Fn(&'a Family) -> &'a Vec<T>,
    seconds: impl Fn(&T) -> f64,
) -> Vec<(&'a Family, &'a T)> {
    let all = state.families.iter().flat_map(|family| of(family).iter().map(move |one| (family, one)));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(_, one), (_, other)| seconds(one).total_cmp(&seconds(other)));
    all
}

#[cfg(test)]
mod tests;
