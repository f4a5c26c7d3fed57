//! `status --watch` in a terminal: asks the agent every second and shows the live view until `q`, Ctrl-C or a signal.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use portolan_status::live::{self, Rates};
use portolan_status::{AgentState, ServiceRates};
use portolan_web::ServerAddress;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::terminal::{self, Input, Terminal};
use super::{get, read};
use crate::paths::{RATES, STATE};

/// How often the agent is asked and the screen is drawn.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the agent is asked for the rates of Services, for which it reads the kernel's counters.
const RATES_PERIOD: Duration = Duration::from_secs(5);
/// After this time without an answer, the view says so.
const SILENCE: Duration = Duration::from_secs(3);

/// A request that is under way.
type Asking<T> = Option<JoinHandle<anyhow::Result<T>>>;

/// What the view shows.
struct View {
    state: AgentState,
    rates: Rates,
    /// The busiest Services. `None` if the agent does not say.
    busiest: Option<ServiceRates>,
    /// Why the last request got no answer.
    lost: Option<String>,
    /// When the agent was asked what it has not answered.
    asked: Option<Instant>,
}

/// Shows the live view. `first` is the answer to the first request. Returns whether everything was in sync at the end, as
/// an exit status.
///
/// # Errors
/// There is no terminal, or it cannot be written.
pub(super) fn run(place: &ServerAddress, first: AgentState) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut view = View { state: first, rates: Rates::default(), busiest: None, lost: None, asked: None };
    let shown = runtime.block_on(async {
        let ends = ends().context("cannot handle signals")?;
        let terminal = Terminal::enter().context("cannot use the terminal")?;
        view.follow(place, terminal, ends).await
    });
    // A request that is under way would delay the end.
    runtime.shutdown_background();
    shown?;
    Ok(if view.state.in_sync && view.lost.is_none() { ExitCode::SUCCESS } else { super::NOT_IN_SYNC.into() })
}

/// Returns the signals that end the view.
fn ends() -> io::Result<[Signal; 4]> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
    let [interrupt, terminate, hangup, quit] = kinds.map(signal);
    Ok([interrupt?, terminate?, hangup?, quit?])
}

/// Waits for one of the signals.
async fn any(ends: &mut [Signal; 4]) {
    let [interrupt, terminate, hangup, quit] = ends;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
        _ = quit.recv() => {}
    }
}

impl View {
    /// Asks and draws until the operator or a signal ends it.
    async fn follow(
        &mut self,
        place: &ServerAddress,
        mut terminal: Terminal,
        mut ends: [Signal; 4],
    ) -> anyhow::Result<()> {
        let mut inputs = terminal::inputs()?;
        let began = Instant::now();
        self.rates.add(0.0, &self.state);
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut rates_ticks = tokio::time::interval(RATES_PERIOD);
        rates_ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut asking: Asking<AgentState> = None;
        let mut asking_rates: Asking<ServiceRates> = None;
        loop {
            tokio::select! {
                () = any(&mut ends) => return Ok(()),
                input = inputs.recv() => {
                    // Without a thread that reads keys, the terminal is gone.
                    if input.is_none_or(|input| input == Input::Quit) {
                        return Ok(());
                    }
                }
                _ = ticks.tick() => {
                    if begin(&mut asking, place, STATE) {
                        self.asked = Some(Instant::now());
                    }
                }
                _ = rates_ticks.tick() => { begin(&mut asking_rates, place, RATES); }
                answer = answered(&mut asking) => {
                    asking = None;
                    self.take(answer, began.elapsed());
                }
                answer = answered(&mut asking_rates) => {
                    asking_rates = None;
                    // An older agent has none. If there is no agent, the state says so.
                    self.busiest = answer.ok();
                }
            }
            self.draw(&mut terminal)?;
        }
    }

    /// Takes an answer that came at this time.
    fn take(&mut self, answer: anyhow::Result<AgentState>, at: Duration) {
        self.asked = None;
        match answer {
            Ok(state) => {
                self.rates.add(at.as_secs_f64(), &state);
                (self.state, self.lost) = (state, None);
            }
            Err(error) => self.lost = Some(format!("{error:#}")),
        }
    }

    fn draw(&self, terminal: &mut Terminal) -> io::Result<()> {
        let silence = self.asked.map(|asked| asked.elapsed()).filter(|silence| *silence >= SILENCE);
        let silence = silence.map(|silence| format!("the proxy has been silent for {} s", silence.as_secs()));
        let lost = silence.as_ref().or(self.lost.as_ref()).map(String::as_str);
        let lines = live::screen(&self.state, &self.rates, self.busiest.as_ref(), lost, terminal.size());
        terminal.show(&lines)
    }
}

/// Begins a request, unless one is under way. Returns true if it begins.
fn begin<T>(asking: &mut Asking<T>, place: &ServerAddress, path: &'static str) -> bool
where
    T: DeserializeOwned + Send + 'static,
{
    if asking.is_some() {
        return false;
    }
    let place = place.clone();
    *asking = Some(tokio::task::spawn_blocking(move || ask(&place, path)));
    true
}

/// Asks the agent for a document. Blocks.
fn ask<T: DeserializeOwned>(place: &ServerAddress, path: &str) -> anyhow::Result<T> {
    read(place, &get(place, path)?)
}

/// Waits for the answer; without a request, without end.
async fn answered<T>(asking: &mut Asking<T>) -> anyhow::Result<T> {
    match asking {
        Some(task) => task.await?,
        None => std::future::pending().await,
    }
}
