//! The subcommand `status`: asks the running agent, and shows its state.
//!
//! - `watch`: the live view of `--watch`, with the feature `live-view`
//! - `terminal`: the terminal that it uses
//! - `again`: `--watch` without a live view

mod again;
#[cfg(feature = "live-view")]
mod terminal;
#[cfg(feature = "live-view")]
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_node::config::{CONTROL_SOCKET, METRICS_PORT};
use portolan_status::{AgentState, ServicePage, ServiceRates, text};
use portolan_web::{Received, ServerAddress};
use serde_json::Value;

use crate::asking::{self, Unanswered};
use crate::paths::{RATES, SERVICES, STATE};
use crate::printing::print;

/// How many Services an answer with counters has. Each answer reads the kernel.
const PAGE: usize = 1_000;
/// How many of the busiest Services are shown.
const BUSIEST: usize = 5;
/// How often the agent is asked again for rates, and the pause before that: rates need two readings of the counters.
const RATES_TRIES: usize = 6;
const RATES_PAUSE: Duration = Duration::from_millis(500);
/// The exit status if not everything is in sync.
const NOT_IN_SYNC: u8 = 1;
/// The exit status if there is no agent, or it may not be asked.
const NO_AGENT: u8 = 2;
/// The exit status if there is an agent, and it cannot answer at present.
const BUSY: u8 = 3;

/// Shows what the running proxy does: whether the kernel has every Service, problems, numbers, the last syncs and the busiest
/// Services.
///
/// The exit status is 0 if everything is in sync, 1 if not, 2 if no proxy answers, and 3 if it is busy.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// The control socket of the proxy.
    #[arg(long, value_name = "FILE", default_value = CONTROL_SOCKET)]
    socket: PathBuf,
    /// Ask the metrics server here, as http://HOST:PORT, and not the control socket.
    #[arg(long, value_name = "URL", conflicts_with = "socket")]
    url: Option<String>,
    /// Show one Service: its frontends, policies and endpoints.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<String>,
    /// Show what was counted of all Services: new connections, and refusals.
    #[arg(long, conflicts_with = "service")]
    counters: bool,
    /// Show the counters of this namespace only.
    #[arg(short, long, value_name = "NAMESPACE", requires = "counters")]
    namespace: Option<String>,
    /// The form of the output.
    #[arg(short, long, value_name = "FORM", value_parser = ["text", "json", "yaml"], default_value = "text")]
    output: String,
    /// Show a live view that is drawn every second, with rates; q ends it. Without a terminal, and in portolan-proxy, print
    /// the state every 5 seconds.
    #[arg(short, long, conflicts_with_all = ["service", "counters", "output"])]
    watch: bool,
}

/// Runs the subcommand. Returns its exit status.
///
/// # Errors
/// An argument is wrong, or the output cannot be written.
pub fn run(options: &StatusOptions) -> anyhow::Result<ExitCode> {
    let place = match &options.url {
        Some(url) => {
            ServerAddress::from_url(url, METRICS_PORT).map_err(|error| anyhow::anyhow!("--url: {error}"))?
        }
        None => ServerAddress::Unix(options.socket.clone()),
    };
    if let Some(service) = options.service.as_deref().filter(|service| !is_service(service)) {
        bail!("--service: `{service}` is not of the form NAMESPACE/NAME");
    }
    if let Some(namespace) = options.namespace.as_deref().filter(|namespace| !is_name(namespace)) {
        bail!("--namespace: `{namespace}` is no name of a namespace");
    }
    if options.watch {
        // Without an agent at the start, the place is probably wrong.
        return match get(&place, STATE).and_then(|answer| read(&place, &answer)) {
            Ok(first) => watch(options, &place, first),
            Err(error) => Ok(failed(&error)),
        };
    }
    match show(options, &place) {
        Ok((shown, is_in_sync)) => {
            print(&shown)?;
            Ok(if is_in_sync { ExitCode::SUCCESS } else { ExitCode::from(NOT_IN_SYNC) })
        }
        Err(error) => Ok(failed(&error)),
    }
}

/// Shows the state until the operator ends it: in a live view, if this program has it and there is a terminal.
fn watch(options: &StatusOptions, place: &ServerAddress, first: AgentState) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "live-view")]
    if terminal::is_there() {
        return watch::run(place, first);
    }
    drop(first);
    again::run(options, place)
}

/// Reports why there is no answer. Returns the exit status.
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("Error: {error:#}");
    status_of(error)
}

/// Returns the exit status for the reason why there is no answer.
fn status_of(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<Busy>() { BUSY } else { NO_AGENT })
}

/// The agent cannot answer at present. A later request may succeed.
#[derive(Debug, thiserror::Error)]
enum Busy {
    #[error("the proxy at {0} does not answer in time")]
    Silent(ServerAddress),
    #[error("the proxy at {0} cannot answer now: {1}")]
    Refused(ServerAddress, String),
}

/// Returns what is to be printed, and whether everything is in sync.
fn show(options: &StatusOptions, place: &ServerAddress) -> anyhow::Result<(String, bool)> {
    let answer = get(place, STATE)?;
    let state: AgentState = read(place, &answer)?;
    if options.counters {
        return Ok((counters(options, place)?, state.in_sync));
    }
    let Some(service) = &options.service else {
        // Without tables of the engine there is nothing to count.
        let has_tables = state.engine_answered && !state.families.is_empty();
        let rates = if has_tables { rates(place) } else { None };
        let shown = match options.output.as_str() {
            "text" => lines(&[text::state(&state), rates.iter().flat_map(text::busiest).collect()].concat()),
            form => {
                let mut all: Value = read(place, &answer)?;
                if let (Some(fields), Some(rates)) = (all.as_object_mut(), &rates) {
                    fields.insert("rates".to_owned(), serde_json::to_value(rates)?);
                }
                form_of(form, &all)?
            }
        };
        return Ok((shown, state.in_sync));
    };
    let answer = get(place, &format!("{SERVICES}?service={service}&counters=true"))?;
    let page: ServicePage = read(place, &answer)?;
    let is_known = !page.services.is_empty();
    let shown = match options.output.as_str() {
        "text" if is_known => lines(&text::services(&page)),
        "text" => format!("The proxy knows no port of the Service {service}.\n"),
        form => document(form, place, &answer)?,
    };
    Ok((shown, state.in_sync && is_known))
}

/// Returns the rates of the busiest Services. Asks again if there is only one reading of the counters so far. `None` if the
/// agent does not say.
fn rates(place: &ServerAddress) -> Option<ServiceRates> {
    let path = format!("{RATES}?top={BUSIEST}");
    let ask = || read::<ServiceRates>(place, &get(place, &path).ok()?).ok();
    let mut rates = ask()?;
    for _ in 0..RATES_TRIES {
        if rates.counted_at.is_none() || rates.over_seconds.is_some() {
            break;
        }
        std::thread::sleep(RATES_PAUSE);
        rates = ask()?;
    }
    Some(rates)
}

/// Returns the counters of all Services, or of those of a namespace. Asks page by page.
fn counters(options: &StatusOptions, place: &ServerAddress) -> anyhow::Result<String> {
    let namespace = options.namespace.as_ref().map(|name| format!("&namespace={name}")).unwrap_or_default();
    let (mut pages, mut after) = (Vec::<ServicePage>::new(), String::new());
    loop {
        let path = format!("{SERVICES}?counters=true&limit={PAGE}{namespace}{after}");
        let page: ServicePage = read(place, &get(place, &path)?)?;
        let next = page.next.clone();
        pages.push(page);
        let Some(next) = next else { break };
        after = format!("&after={next}");
    }
    if options.output == "text" {
        return Ok(lines(&text::counters(&pages)));
    }
    let mut all = ServicePage::default();
    for page in pages {
        let not_counted = all.not_counted.take().or(page.not_counted);
        // Pages may be of two readings.
        let counted_at = all.counted_at.take().or(page.counted_at);
        all.services.extend(page.services);
        all = ServicePage { version: page.version, time: page.time, not_counted, counted_at, ..all };
    }
    form_of(&options.output, &serde_json::to_value(&all)?)
}

/// Returns true for text with the characters of names only. Others would change the request.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
}

/// Returns true for `NAMESPACE/NAME`.
fn is_service(text: &str) -> bool {
    text.split_once('/').is_some_and(|(namespace, name)| is_name(namespace) && is_name(name))
}

fn get(place: &ServerAddress, path: &str) -> anyhow::Result<Received> {
    let answer = asking::send(place, "GET", path, b"").map_err(|error| match error {
        Unanswered::Silent(place) => Busy::Silent(place).into(),
        error => anyhow::Error::new(error),
    })?;
    let text = || asking::text(&answer);
    match answer.status {
        200 => Ok(answer),
        404 => bail!(
            "{place} does not show its state: an older proxy, or its metrics port is not on a loopback address; ask \
             its control socket, or set portolan.stateOnAnyAddress"
        ),
        503 => Err(Busy::Refused(place.clone(), text()).into()),
        status => bail!("the proxy at {place} answers with status {status}: {}", text()),
    }
}

fn read<T: serde::de::DeserializeOwned>(place: &ServerAddress, answer: &Received) -> anyhow::Result<T> {
    serde_json::from_slice(&answer.body).with_context(|| format!("{place} answers with something else"))
}

/// Returns the document as received, in another form.
fn document(form: &str, place: &ServerAddress, answer: &Received) -> anyhow::Result<String> {
    form_of(form, &read(place, answer)?)
}

/// Returns a document in the form of the output.
fn form_of(form: &str, value: &Value) -> anyhow::Result<String> {
    Ok(match form {
        "yaml" => {
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            serde_saphyr::to_string_with_options(value, options)?
        }
        _ => format!("{value:#}\n"),
    })
}

fn lines(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn a_busy_agent_is_another_error_than_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let place = ServerAddress::Unix(path.clone());
        assert!(!get(&place, STATE).unwrap_err().is::<Busy>());
        for (status, is_busy) in [("503 Service Unavailable", true), ("500 Internal Server Error", false)] {
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let answer = format!("HTTP/1.0 {status}\r\n\r\nask again\n");
            let serving = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // The head is short and comes at once.
                let _ = stream.read(&mut [0; 1024]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let error = get(&place, STATE).unwrap_err();
            serving.join().unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(error.is::<Busy>(), is_busy, "{error:#}");
            assert!(error.to_string().ends_with(": ask again"), "{error:#}");
        }
    }

    #[test]
    fn a_service_is_a_namespace_and_a_name() {
        for (text, want) in [
            ("default/web", true),
            ("a-b/c.d", true),
            ("web", false),
            ("a/b/c", false),
            ("/web", false),
            ("a/b&limit=1", false),
            ("a/b c", false),
        ] {
            assert_eq!(is_service(text), want, "{text}");
        }
    }
}
