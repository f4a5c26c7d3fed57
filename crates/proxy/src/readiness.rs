//! Shows on the Node object whether Services work on this node (`readiness` in the configuration).
//!
//! Until everything was programmed and read back once, the agent leaves the taint in place, which the kubelet or the
//! cloud has set, and sets the condition to True. Then it removes the taint, also if that comes back, and sets the
//! condition to False. It owns this taint and this condition and touches no others.
//!
//! ```text
//! agent: verified, taints ──> Progress ──> follow: what is to be written ──> portolan_watch::node
//! ```
//!
//! Nothing waits for these writes: a failed one is counted, reported and tried again.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use portolan_model::object::Node;
use portolan_node::config::{Readiness, Taint, TaintEffect};
use portolan_node::metrics::{NodeWrite, ProxyMetrics};
use portolan_watch::Client;
use portolan_watch::node::{NodeCondition, NodeError, OwnNode};
use tokio::sync::watch;

use super::events::Notes;

/// What decides what is written. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub(super) struct Progress(Rc<watch::Sender<State>>);

#[derive(Clone)]
struct State {
    client: Client,
    setting: Readiness,
    /// True once everything was programmed and read back.
    verified: bool,
    /// True if the Node has the taint, as far as the watch shows.
    is_tainted: bool,
    /// The taints of the Node.
    taints: Vec<portolan_model::object::Taint>,
    /// True if the next Node may be another one than the last: that one was deleted, or the Nodes are listed again.
    may_be_new: bool,
}

impl Progress {
    pub(super) fn new(client: Client, setting: Readiness) -> Self {
        let (verified, is_tainted, taints, may_be_new) = (false, false, Vec::new(), false);
        let state = State { client, setting, verified, is_tainted, taints, may_be_new };
        Self(Rc::new(watch::Sender::new(state)))
    }

    /// Writes with another client from now on.
    pub(super) fn use_client(&self, client: Client) {
        self.0.send_modify(|state| state.client = client);
    }

    /// Uses another setting.
    pub(super) fn configure(&self, setting: &Readiness) {
        self.update(|state| {
            let differs = state.setting != *setting;
            state.setting.clone_from(setting);
            differs
        });
    }

    /// Notes that everything was programmed and read back.
    pub(super) fn verified(&self) {
        self.update(|state| !std::mem::replace(&mut state.verified, true));
    }

    /// Returns true if there is something to write once everything was programmed and read back, and it was not.
    pub(super) fn needs_verification(&self) -> bool {
        let state = self.0.borrow();
        state.setting.is_wanted() && !state.verified
    }

    /// Notes the taints of the Node. If it may be another one, its condition is looked at.
    pub(super) fn node(&self, node: &Node) {
        self.update(|state| {
            state.taints.clone_from(&node.taints);
            std::mem::take(&mut state.may_be_new) && state.setting.is_wanted()
        });
    }

    /// Notes that the Node was deleted, or that Nodes are listed again: the one that comes next may be another one.
    pub(super) fn node_may_be_new(&self) {
        self.update(|state| {
            state.may_be_new = true;
            false
        });
    }

    /// Changes the state. Wakes the writer if `change` returns true or the taint appears.
    fn update(&self, change: impl FnOnce(&mut State) -> bool) {
        self.0.send_if_modified(|state| {
            let changed = change(state);
            let before = state.is_tainted;
            state.is_tainted = state.setting.taint.as_ref().is_some_and(|taint| {
                state.taints.iter().any(|has| {
                    *has.key == *taint.key && taint.effect.is_none_or(|effect| *has.effect == *effect.name())
                })
            });
            changed || state.is_tainted && !before
        });
    }
}

/// Writes to the Node what the state asks for.
pub(super) async fn follow(
    progress: Progress,
    node_name: &str,
    notes: &Notes,
    metrics: &ProxyMetrics,
) -> Infallible {
    let mut states = progress.0.subscribe();
    loop {
        let state = states.borrow_and_update().clone();
        let writer = Writer::new(OwnNode::new(state.client.clone(), node_name), notes, metrics);
        let everything = async {
            writer.write(&state).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = everything => {}
            // `progress` has the sender, so this does not fail.
            _ = states.changed() => {}
        }
    }
}

/// Sends the writes of one state until each has succeeded.
struct Writer<'a> {
    node: OwnNode,
    notes: &'a Notes,
    metrics: &'a ProxyMetrics,
    /// One write at a time: the removal of the taint fails if the Node changes meanwhile.
    turn: tokio::sync::Mutex<()>,
}

impl<'a> Writer<'a> {
    fn new(node: OwnNode, notes: &'a Notes, metrics: &'a ProxyMetrics) -> Self {
        Self { node, notes, metrics, turn: tokio::sync::Mutex::new(()) }
    }
}

impl Writer<'_> {
    async fn write(&self, state: &State) {
        let untaint = async {
            if let Some(taint) = state.setting.taint.as_ref().filter(|_| state.verified) {
                self.until_done(&format!("the taint {taint} cannot be removed"), || self.remove(taint)).await;
            }
        };
        let show = async {
            if let Some(kind) = &state.setting.condition {
                let what = format!("the condition {kind} cannot be set");
                self.until_done(&what, || self.set(kind, state.verified)).await;
            }
        };
        // The API server may refuse one of them for as long as the agent runs.
        tokio::join!(untaint, show);
    }

    async fn remove(&self, taint: &Taint) -> Result<(), NodeError> {
        if self.node.remove_taint(&taint.key, taint.effect.map(TaintEffect::name)).await? {
            tracing::info!(%taint, "Services work on this node: the taint is removed");
        }
        Ok(())
    }

    async fn set(&self, kind: &str, verified: bool) -> Result<(), NodeError> {
        let wanted = condition(kind, verified);
        let known = self.node.condition(kind).await?;
        let status = if wanted.status { "True" } else { "False" };
        let is_there =
            known.as_ref().is_some_and(|known| known.status == status && known.reason == wanted.reason);
        // An earlier run has programmed everything since the node was booted, and the rules stay in the kernel.
        let stays = !verified
            && known.as_ref().is_some_and(|known| {
                known.status == "False"
                    && known.reason == condition(kind, true).reason
                    && known.since.is_some_and(|since| booted_at().is_some_and(|boot| since > boot))
            });
        if is_there || stays {
            return Ok(());
        }
        self.node.set_condition(&wanted).await?;
        tracing::info!(condition = kind, status, reason = wanted.reason, "the Node has the condition");
        Ok(())
    }

    /// Repeats a write until it succeeds.
    async fn until_done<F: Future<Output = Result<(), NodeError>>>(&self, what: &str, write: impl Fn() -> F) {
        let mut failures = 0_u32;
        loop {
            let turn = self.turn.lock().await;
            let written = write().await;
            drop(turn);
            let Err(error) = written else {
                self.metrics.node_written(NodeWrite::Ok);
                return;
            };
            self.metrics.node_written(NodeWrite::Failed);
            if error.is_conflict() {
                tracing::debug!(%error, "the Node changed meanwhile; trying again");
            } else {
                tracing::warn!(%error, "{what}; trying again");
                self.notes.node_not_updated(&format!("{what}; trying again: {error}"));
            }
            tokio::time::sleep(error.wait(failures)).await;
            failures = failures.saturating_add(1);
        }
    }
}

/// Returns the condition before and after everything was programmed.
fn condition(kind: &str, verified: bool) -> NodeCondition {
    let (reason, message) = if verified {
        ("ServicesProgrammed", "portolan has programmed all Services and read them back")
    } else {
        ("ServicesNotProgrammed", "portolan has not programmed all Services yet")
    };
    NodeCondition { kind: kind.to_owned(), status: !verified, reason, message }
}

/// Returns when the node was booted, or `None` if the kernel does not tell.
fn booted_at() -> Option<SystemTime> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds = uptime.split_whitespace().next()?.parse().ok()?;
    SystemTime::now().checked_sub(Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper::{Method, Request, StatusCode};
    use portolan_node::metrics::BuildInfo;
    use portolan_watch::ClientSettings;
    use portolan_watch::events::Recorder;
    use portolan_web::{self as web, Handler, Listener};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    /// Returns an API server with one tainted Node. It refuses patches of the path `refused`, and sends the paths of
    /// those that it accepts.
    fn api(refused: &'static str, accepted: mpsc::UnboundedSender<String>) -> Handler {
        const NODE: &str = r#"{"kind": "NodeList", "items": [{"metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}, "status": {}}]}"#;
        Arc::new(move |request: &Request<Bytes>| {
            let path = request.uri().path();
            let (status, text) = match request.method() {
                &Method::GET => (StatusCode::OK, NODE),
                _ if path == refused => (StatusCode::FORBIDDEN, "{}"),
                _ => {
                    accepted.send(path.to_owned()).expect("the test waits");
                    (StatusCode::OK, "{}")
                }
            };
            web::answer(status, web::JSON, text).into()
        })
    }

    #[tokio::test]
    async fn one_write_that_is_refused_does_not_hold_up_the_other() {
        const TAINTS: &str = "/api/v1/nodes/n";
        const STATUS: &str = "/api/v1/nodes/n/status";
        for (refused, wanted) in [(TAINTS, STATUS), (STATUS, TAINTS)] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let master = format!("http://{}", listener.local_addr().expect("an address"));
            let (sender, mut accepted) = mpsc::unbounded_channel();
            let handler = api(refused, sender);
            let settings = ClientSettings { master: Some(master), ..ClientSettings::default() };
            let client = portolan_watch::connect(&settings).await.expect("a client");
            let (recorder, _poster) = Recorder::new(client.clone(), "n");
            let (notes, metrics) =
                (Notes::new(recorder, "n"), ProxyMetrics::new(BuildInfo::of_version("v1")));
            let taint = Some(Taint { key: "t".to_owned(), effect: None });
            let progress = Progress::new(client, Readiness { taint, condition: Some("x".to_owned()) });
            progress.verified();
            let written = RefCell::new(None);
            tokio::select! {
                error = web::serve(Listener::Tcp(&listener), &handler) => panic!("{error}"),
                never = follow(progress, "n", &notes, &metrics) => match never {},
                path = accepted.recv() => written.replace(path),
            };
            assert_eq!(written.take().as_deref(), Some(wanted));
        }
    }

    #[test]
    fn the_node_was_booted_before_now() {
        assert!(booted_at().expect("Linux has /proc/uptime") <= SystemTime::now());
    }

    #[test]
    fn the_condition_is_true_until_services_work() {
        assert!(condition("x", false).status && !condition("x", true).status);
        assert_ne!(condition("x", false).reason, condition("x", true).reason);
    }
}
