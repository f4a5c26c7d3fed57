//! `status --watch`: asks the agent every second and shows the live view until `q`, Ctrl-C or a signal.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use portolan_status::AgentState;
use portolan_status::live::{self, Rates};
use portolan_web::ServerAddress;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::terminal::Terminal;
use super::{get, read};
use crate::paths::STATE;

/// How often the agent is asked and the screen is drawn.
const PERIOD: Duration = Duration::from_secs(1);
/// After this time without an answer, the view says so.
const SILENCE: Duration = Duration::from_secs(3);
/// The keys that end the view, besides Ctrl-C: `q`, `Q` and Ctrl-D.
const QUIT: [u8; 3] = [b'q', b'Q', 4];

/// What the view shows.
struct View {
    state: AgentState,
    rates: Rates,
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
    let mut view = View { state: first, rates: Rates::default(), lost: None, asked: None };
    let shown = runtime.block_on(async {
        let signals = Signals::new().context("cannot handle signals")?;
        let terminal = Terminal::enter()?;
        view.follow(place, &terminal, signals).await
    });
    // A request that is under way would delay the end.
    runtime.shutdown_background();
    shown?;
    Ok(if view.state.in_sync && view.lost.is_none() { ExitCode::SUCCESS } else { super::NOT_IN_SYNC.into() })
}

/// The signals that end the view, and the one of another size.
struct Signals {
    ends: [Signal; 4],
    resized: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let kinds =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let [interrupt, terminate, hangup, quit] = kinds.map(signal);
        let ends = [interrupt?, terminate?, hangup?, quit?];
        Ok(Self { ends, resized: signal(SignalKind::window_change())? })
    }

    /// Waits for a signal that ends the view.
    async fn end(ends: &mut [Signal; 4]) {
        let [interrupt, terminate, hangup, quit] = ends;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

impl View {
    /// Asks and draws until the operator or a signal ends it.
    async fn follow(
        &mut self,
        place: &ServerAddress,
        terminal: &Terminal,
        signals: Signals,
    ) -> anyhow::Result<()> {
        let Signals { mut ends, mut resized } = signals;
        let mut keys = keys()?;
        let began = Instant::now();
        self.rates.add(0.0, &self.state);
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut asking: Option<JoinHandle<anyhow::Result<AgentState>>> = None;
        loop {
            tokio::select! {
                () = Signals::end(&mut ends) => return Ok(()),
                _ = resized.recv() => {}
                key = keys.recv() => {
                    // No key at all: the terminal is gone.
                    if key.is_none_or(|key| QUIT.contains(&key)) {
                        return Ok(());
                    }
                }
                _ = ticks.tick() => {
                    if asking.is_none() {
                        let place = place.clone();
                        self.asked = Some(Instant::now());
                        asking = Some(tokio::task::spawn_blocking(move || ask(&place)));
                    }
                }
                answer = answered(&mut asking) => {
                    asking = None;
                    self.take(answer, began.elapsed());
                }
            }
            self.draw(terminal)?;
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

    fn draw(&self, terminal: &Terminal) -> io::Result<()> {
        let silence = self.asked.map(|asked| asked.elapsed()).filter(|silence| *silence >= SILENCE);
        let silence = silence.map(|silence| format!("the proxy has been silent for {} s", silence.as_secs()));
        let lost = silence.as_ref().or(self.lost.as_ref()).map(String::as_str);
        terminal.show(&live::screen(&self.state, &self.rates, lost, Terminal::size()))
    }
}

/// Starts a thread that reads the keys until the terminal or the process ends.
fn keys() -> io::Result<mpsc::Receiver<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    let read = move || {
        let keys = io::stdin().lock().bytes().map_while(Result::ok);
        // A send fails when the view has ended.
        for key in keys {
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(receiver)
}

/// Asks the agent. Blocks.
fn ask(place: &ServerAddress) -> anyhow::Result<AgentState> {
    read(place, &get(place, STATE)?)
}

/// Waits for the answer; without a request, without end.
async fn answered(asking: &mut Option<JoinHandle<anyhow::Result<AgentState>>>) -> anyhow::Result<AgentState> {
    match asking {
        Some(task) => task.await?,
        None => std::future::pending().await,
    }
}
