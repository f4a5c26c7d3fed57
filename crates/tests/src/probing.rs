//! Sends packets and compares the results with the oracle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::{fmt, fs};

use portolan_model::oracle::{FlowState, Oracle, Origin, Packet};
use portolan_model::table::Entry;
use portolan_model::verdict::{Fate, Reason, Verdict};
use portolan_model::{Backend, Family, Frontend, Protocol, ServicePortName};
use portolan_testkit::{Namespace, Pod, Probe, ProbeResult, Reached, Site, probe_many};

use crate::cluster::FlowKey;
use crate::{Cluster, Sender};

/// Limit of the probability, as a negative power of ten, that a set of backends is not seen whole by chance. One run
/// checks some thousand sets.
const CHANCE_EXPONENT: f64 = 11.0;
/// Size of the largest set of backends that must be seen whole.
const LARGEST_COVERED_SET: usize = 4;

/// A packet to send.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The sender. Its address of the family is the source.
    pub sender: Sender,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination.
    pub destination: SocketAddr,
}

/// The result of an attempt.
#[derive(Debug, Clone)]
pub struct ProbedAttempt {
    /// The attempt.
    pub attempt: Attempt,
    /// The oracle's verdict.
    pub verdict: Verdict,
    /// The actual result.
    pub result: ProbeResult,
    /// The source port, which no other packet of this sender has, except for one that was refused before.
    pub source_port: u16,
}

impl Attempt {
    /// Returns the family of the packet.
    pub const fn family(&self) -> Family {
        Family::of(self.destination.ip())
    }

    /// Returns what the flows of a sender to one destination have in common.
    fn flow(&self) -> FlowKey {
        (self.sender.namespace.id(), self.packet().source, self.protocol, self.destination)
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            origin: self.sender.origin(),
            source: if self.destination.ip().is_loopback() {
                self.destination.ip()
            } else {
                self.sender.address(self.family())
            },
            destination: self.destination.ip(),
            protocol: self.protocol,
            port: self.destination.port(),
            flow: FlowState::New,
        }
    }
}

impl ProbedAttempt {
    /// Returns the Service port that the oracle names.
    fn owner(&self) -> Option<&ServicePortName> {
        self.verdict.decided_by.as_ref().map(|decision| &*decision.name)
    }

    /// Returns the flow and the source port, if rules refused the packet.
    fn refused_port(&self) -> Option<(FlowKey, u16)> {
        let is_refused = self.verdict.fate == Fate::Reject && self.result == ProbeResult::Refused;
        is_refused.then(|| (self.attempt.flow(), self.source_port))
    }

    /// Returns true if a packet that is not masqueraded has got another source port of the node.
    fn is_port_clash(&self) -> bool {
        let ProbeResult::Reached(reached) = &self.result else { return false };
        let expects_masquerading = match &self.verdict.fate {
            Fate::Backends { set, masqueraded, .. } => set
                .iter()
                .zip(masqueraded)
                .any(|(backend, masqueraded)| *masqueraded && backend.socket() == reached.backend),
            Fate::NotOurs => false,
            Fate::Reject | Fate::Drop => return false,
        };
        self.attempt.sender.origin() == Origin::Node
            && !expects_masquerading
            && reached.seen_source.ip() == self.attempt.packet().source
            && reached.seen_source.port() != self.source_port
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} {}", self.sender.name, self.protocol, self.destination)
    }
}

impl Cluster {
    /// Sends each packet, and as many more as are needed to see every member of every small set of backends. Returns
    /// descriptions of the results that differ from the oracle's.
    pub fn faults(&mut self, attempts: &[Attempt]) -> Vec<String> {
        self.faults_and(attempts, |_, _| None)
    }

    /// Like [`Self::faults`], with a description of each packet by the caller, where it returns one.
    pub fn faults_and(
        &mut self,
        attempts: &[Attempt],
        describe: impl Fn(&Self, &ProbedAttempt) -> Option<String>,
    ) -> Vec<String> {
        let mut outcomes = self.attempt(attempts);
        let more = missing(&outcomes);
        outcomes.extend(self.attempt(&more));
        self.repeat_clashes(&mut outcomes);
        let mut faults: Vec<_> = outcomes.iter().filter_map(|outcome| self.fault(outcome)).collect();
        faults.extend(outcomes.iter().filter_map(|outcome| describe(self, outcome)));
        faults.extend(self.misattributed(&outcomes));
        faults.extend(unseen(&outcomes));
        faults.extend(unfaithful(&outcomes, self.differences(Family::Ipv4).affinity_per_frontend));
        faults
    }

    /// Repeats packets whose source port was taken. The node's own packets share its addresses with masqueraded ones,
    /// which use random ports; if a port is taken, the kernel selects another. Only a packet that gets another port
    /// in every repetition is a fault.
    fn repeat_clashes(&mut self, outcomes: &mut [ProbedAttempt]) {
        for _ in 0..2 {
            let mut clashes: Vec<&mut ProbedAttempt> =
                outcomes.iter_mut().filter(|o| o.is_port_clash()).collect();
            let again: Vec<Attempt> = clashes.iter().map(|outcome| outcome.attempt.clone()).collect();
            for (clash, outcome) in clashes.iter_mut().zip(self.attempt(&again)) {
                **clash = outcome;
            }
        }
    }

    /// Sends packets, all at the same time.
    pub fn attempt(&mut self, attempts: &[Attempt]) -> Vec<ProbedAttempt> {
        let mut outcomes = Vec::with_capacity(attempts.len());
        for (attempt, verdict) in attempts.iter().zip(self.judge(attempts)) {
            let source_port = self.source_port(attempt.flow());
            let (attempt, result) = (attempt.clone(), ProbeResult::TimedOut);
            outcomes.push(ProbedAttempt { attempt, verdict, result, source_port });
        }
        let probes: Vec<(&Namespace, Probe)> =
            outcomes.iter().map(|outcome| (&outcome.attempt.sender.namespace, self.probe(outcome))).collect();
        let results = probe_many(&probes).unwrap();
        for (outcome, result) in outcomes.iter_mut().zip(results) {
            outcome.result = result;
        }
        self.repeat_unsent(&mut outcomes);
        self.refused_ports.extend(outcomes.iter().filter_map(ProbedAttempt::refused_port));
        outcomes
    }

    /// Repeats packets that could not be sent. The relay of userspace mode sends from the node's addresses and may
    /// use the port.
    fn repeat_unsent(&mut self, outcomes: &mut [ProbedAttempt]) {
        let is_taken = |result: &ProbeResult| matches!(result, ProbeResult::Failed(errno) if errno.kind() == ErrorKind::AddrInUse);
        for outcome in outcomes.iter_mut().filter(|outcome| is_taken(&outcome.result)) {
            for _ in 0..5 {
                outcome.source_port = self.source_port(outcome.attempt.flow());
                let probe = (&outcome.attempt.sender.namespace, self.probe(outcome));
                outcome.result = probe_many(&[probe]).unwrap().remove(0);
                if !is_taken(&outcome.result) {
                    break;
                }
            }
        }
    }

    fn probe(&self, outcome: &ProbedAttempt) -> Probe {
        let ProbedAttempt { attempt, verdict, source_port, .. } = outcome;
        let probe = Probe::new(attempt.protocol, attempt.destination);
        let probe = probe.from(attempt.packet().source).from_port(*source_port);
        if self.may_be_silent(attempt, verdict) { probe.expecting_silence() } else { probe }
    }

    /// Returns the oracle's verdict on each packet, as the first one of its flow.
    pub fn judge(&self, attempts: &[Attempt]) -> Vec<Verdict> {
        self.judge_in(attempts, FlowState::New)
    }

    /// Returns the oracle's verdict on each packet of a flow in this state.
    pub fn judge_in(&self, attempts: &[Attempt], flow: FlowState) -> Vec<Verdict> {
        let local_addresses = self.node_addresses();
        let tables = Family::BOTH.map(|family| self.table(family));
        let differences = Family::BOTH.map(|family| self.differences(family));
        let judge = |attempt: &Attempt| {
            let index = usize::from(attempt.family() == Family::Ipv6);
            let oracle = Oracle {
                settings: self.settings(attempt.family()),
                local_addresses: &local_addresses,
                table: &tables[index],
                differences: &differences[index],
                // The data planes get none.
                health_check_ports: &[],
            };
            oracle.verdict(&Packet { flow, ..attempt.packet() })
        };
        attempts.iter().map(judge).collect()
    }

    /// Returns true if the oracle allows that no response arrives.
    fn may_be_silent(&self, attempt: &Attempt, verdict: &Verdict) -> bool {
        match &verdict.fate {
            Fate::Drop => true,
            Fate::Reject => false,
            Fate::Backends { set, masqueraded, .. } => {
                let source = attempt.packet().source;
                let mut backends = set.iter().zip(masqueraded);
                let leads_to_itself = set.iter().any(|backend| backend.socket() == attempt.destination);
                (leads_to_itself && self.checks_what_leads_to_itself(verdict))
                    || backends.any(|(backend, masqueraded)| {
                        !masqueraded && self.is_same_host(source, backend.address)
                    })
            }
            Fate::NotOurs => {
                let Attempt { destination, protocol, .. } = attempt;
                if self.is_responder(*destination) || self.is_pod(destination.ip()) {
                    return false;
                }
                // The raw SCTP sockets of other probes keep the node's kernel from refusing.
                !self.is_node_address(destination.ip()) || *protocol == Protocol::Sctp
            }
        }
    }

    /// Returns true if rules for packets that no Service has translated may drop a packet whose endpoint is its destination.
    /// Connection tracking does not count that as a translation. The rules are those of external policy Local without endpoints on
    /// this node and, in iptables mode, of source ranges. kube-proxy's rules do the same.
    fn checks_what_leads_to_itself(&self, verdict: &Verdict) -> bool {
        let is_checked = |reason: &Reason| match reason {
            Reason::ShortCutForPods | Reason::ShortCutForNode => true,
            Reason::SourceInRange { .. } | Reason::SourceIsLoadBalancerIp { .. } => {
                self.mode().name() == "iptables"
            }
            _ => false,
        };
        !self.mode().relays() && verdict.reasons.iter().any(is_checked)
    }

    /// Returns true if an endpoint's answer to this source does not pass the node. The remote node takes no packet whose source
    /// is its own address, and its pods answer it directly.
    fn is_same_host(&self, source: IpAddr, endpoint: IpAddr) -> bool {
        let is_of_remote_node = |pod: &Pod| pod.address(Family::of(endpoint)) == endpoint;
        endpoint == source
            || (Site::Remote.node().both().contains(&source)
                && self.world.remote_pods().iter().any(is_of_remote_node))
    }

    /// Returns what is wrong with an outcome.
    fn fault(&self, outcome: &ProbedAttempt) -> Option<String> {
        let ProbedAttempt { attempt, verdict, result, .. } = outcome;
        let fate = &verdict.fate;
        let fits = match (fate, result) {
            (_, ProbeResult::TimedOut) => self.may_be_silent(attempt, verdict),
            (Fate::Backends { set, masqueraded, .. }, ProbeResult::Reached(reached)) => {
                let mut candidates = set.iter().zip(masqueraded);
                candidates.any(|(backend, masqueraded)| {
                    backend.socket() == reached.backend && self.fits_source(outcome, reached, *masqueraded)
                })
            }
            (Fate::Reject, ProbeResult::Refused) => true,
            (Fate::NotOurs, ProbeResult::Reached(reached)) => {
                reached.backend == attempt.destination && self.fits_source(outcome, reached, false)
            }
            // The node or the pod itself refuses, as nothing listens there.
            (Fate::NotOurs, ProbeResult::Refused | ProbeResult::Unreachable) => {
                let destination = attempt.destination;
                let answers = self.is_node_address(destination.ip()) || self.is_pod(destination.ip());
                answers && !self.is_responder(destination)
            }
            _ => false,
        };
        let reasons =
            || outcome.verdict.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        (!fits).then(|| {
            let (port, entries) = (outcome.source_port, self.tracked(outcome));
            let (reasons, relay) = (reasons(), self.relay_counters(attempt.family()));
            format!(
                "{attempt} from port {port}: {result:?}, but the oracle says {fate:?}: {reasons}; tracked: {entries}{relay}"
            )
        })
    }

    /// Returns the node's conntrack entries of a packet's source port, and those of an endpoint that has not answered.
    fn tracked(&self, outcome: &ProbedAttempt) -> String {
        let ProbedAttempt { verdict: Verdict { fate, .. }, source_port, .. } = outcome;
        let of_port = [format!("sport={source_port} "), format!("dport={source_port} ")];
        let endpoints: Vec<SocketAddr> = match fate {
            Fate::Backends { set, .. } => set.iter().map(Backend::socket).collect(),
            _ => Vec::new(),
        };
        let read = || fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap_or_default();
        let text = self.world.node().namespace().run(read).unwrap_or_default();
        let is_wanted = |line: &&str| {
            of_port.iter().any(|part| line.contains(part))
                || line.contains("[UNREPLIED]") && endpoints.iter().any(|endpoint| is_to(line, *endpoint))
        };
        text.lines().filter(is_wanted).collect::<Vec<_>>().join(", ")
    }

    /// Returns the outcomes for which the oracle names another Service port than the table.
    fn misattributed(&self, outcomes: &[ProbedAttempt]) -> Vec<String> {
        let tables = Family::BOTH.map(|family| self.table(family));
        let check = |outcome: &ProbedAttempt| {
            let ProbedAttempt { attempt, verdict, .. } = outcome;
            let table = &tables[usize::from(attempt.family() == Family::Ipv6)];
            let named = outcome.owner();
            let fits = match (owner(table, attempt), node_port_owner(table, attempt)) {
                (Some(owner), _) => named == Some(owner),
                // Not every address accepts node ports.
                (None, Some(owner)) => {
                    named.map_or(!matches!(verdict.fate, Fate::Backends { .. }), |named| named == owner)
                }
                (None, None) => named.is_none(),
            };
            (!fits).then(|| format!("{attempt}: the oracle names {named:?} as its Service port: {verdict:?}"))
        };
        outcomes.iter().filter_map(check).collect()
    }

    /// Returns true if the source is right. Without masquerading it must be unchanged, including the port. With
    /// masquerading it must be the address of the interface towards the backend.
    fn fits_source(&self, outcome: &ProbedAttempt, reached: &Reached, masqueraded: bool) -> bool {
        let seen = reached.seen_source;
        if masqueraded {
            seen.ip() == self.address_towards(reached.backend.ip())
        } else {
            seen == SocketAddr::new(outcome.attempt.packet().source, outcome.source_port)
        }
    }

    fn address_towards(&self, backend: IpAddr) -> IpAddr {
        let family = Family::of(backend);
        let local = self.world.pods().iter().any(|pod| pod.address(family) == backend);
        if local { Site::Local.gateway().of(family) } else { Site::Local.node().of(family) }
    }
}

/// Returns the Service port whose address and port the destination is.
fn owner<'a>(table: &'a [Entry], attempt: &Attempt) -> Option<&'a ServicePortName> {
    with_frontend(table, attempt.protocol, |frontend| frontend.socket() == Some(attempt.destination))
}

/// Returns the Service port whose node port the destination has.
fn node_port_owner<'a>(table: &'a [Entry], attempt: &Attempt) -> Option<&'a ServicePortName> {
    let node_port = Frontend::NodePort(attempt.destination.port());
    with_frontend(table, attempt.protocol, |frontend| frontend == node_port)
}

fn with_frontend(
    table: &[Entry],
    protocol: Protocol,
    is_it: impl Fn(Frontend) -> bool,
) -> Option<&ServicePortName> {
    let mut of_protocol = table.iter().filter(|(_, forwarding)| forwarding.protocol == protocol);
    let found =
        of_protocol.find(|(_, forwarding)| forwarding.frontends.iter().any(|frontend| is_it(*frontend)));
    found.map(|(name, _)| &**name)
}

/// Packets that share a set of backends, from which each is assigned one at random.
type Group<'a> = (Family, Option<&'a ServicePortName>, &'a [Backend]);

fn groups(outcomes: &[ProbedAttempt]) -> BTreeMap<Group<'_>, Vec<&ProbedAttempt>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for outcome in outcomes {
        if let Fate::Backends { set, affinity: None, .. } = &outcome.verdict.fate {
            let group = (outcome.attempt.family(), outcome.owner(), set.as_slice());
            groups.entry(group).or_default().push(outcome);
        }
    }
    groups.retain(|(.., set), _| (2..=LARGEST_COVERED_SET).contains(&set.len()));
    groups
}

/// Returns the number of draws after which every member of the set has been drawn, except with negligible
/// probability.
fn draws_needed(members: usize) -> usize {
    let members = u32::try_from(members).map_or(f64::INFINITY, f64::from);
    let per_draw = (1.0 - 1.0 / members).ln();
    let needed = (-CHANCE_EXPONENT * std::f64::consts::LN_10 - members.ln()) / per_draw;
    // The value is small and positive.
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "both logarithms are negative, and the value is small"
    )]
    let needed = needed.ceil() as usize;
    needed
}

/// Returns the attempts to repeat until every member of every small set should have been seen.
fn missing(outcomes: &[ProbedAttempt]) -> Vec<Attempt> {
    let mut more = Vec::new();
    for ((.., set), members) in groups(outcomes) {
        let needed = draws_needed(set.len()).saturating_sub(members.len());
        more.extend(members.iter().cycle().take(needed).map(|outcome| outcome.attempt.clone()));
    }
    more
}

/// Returns the backends that no packet has reached, although they should have been drawn by then.
fn unseen(outcomes: &[ProbedAttempt]) -> Vec<String> {
    let mut faults = Vec::new();
    for ((family, owner, set), members) in groups(outcomes) {
        // A backend that draws itself without masquerading gets no response; see `may_be_silent`.
        let silent = members.iter().any(|outcome| outcome.result.backend().is_none());
        if silent {
            continue;
        }
        let seen: BTreeSet<SocketAddr> =
            members.iter().filter_map(|outcome| outcome.result.backend()).collect();
        let never: Vec<_> =
            set.iter().map(Backend::socket).filter(|backend| !seen.contains(backend)).collect();
        if !never.is_empty() {
            let service = owner.map(ToString::to_string).unwrap_or_default();
            faults.push(format!(
                "{service} {family}: {never:?} of {} never reached by {} packets",
                set.len(),
                members.len()
            ));
        }
    }
    faults
}

/// Returns the clients that one Service with session affinity has sent to several backends, although the set of
/// backends was the same each time.
fn unfaithful(outcomes: &[ProbedAttempt], per_frontend: bool) -> Vec<String> {
    let mut bindings: HashMap<_, (BTreeSet<&[Backend]>, BTreeSet<SocketAddr>)> = HashMap::new();
    for outcome in outcomes {
        let Fate::Backends { set, affinity: Some(_), .. } = &outcome.verdict.fate else { continue };
        let source = outcome.attempt.packet().source;
        let frontend = per_frontend.then_some(outcome.attempt.destination);
        let entry = bindings.entry((outcome.owner(), source, frontend)).or_default();
        entry.0.insert(set);
        entry.1.extend(outcome.result.backend());
    }
    let unfaithful = bindings.into_iter().filter(|(_, (sets, reached))| sets.len() == 1 && reached.len() > 1);
    unfaithful
        .map(|((service, source, _), (_, reached))| {
            let service = service.map(ToString::to_string).unwrap_or_default();
            format!("{service}: {source} has affinity, but reached {reached:?}")
        })
        .collect()
}

/// Returns true if a conntrack entry is of a flow to this place.
fn is_to(entry: &str, place: SocketAddr) -> bool {
    let has = |name: &str| entry.split_whitespace().find_map(|word| word.strip_prefix(name));
    let address: Option<IpAddr> = has("dst=").and_then(|text| text.parse().ok());
    address == Some(place.ip()) && has("dport=").is_some_and(|port| port == place.port().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_grow_with_the_set() {
        assert_eq!([1, 2, 3, 4].map(draws_needed), [0, 38, 66, 93]);
    }
}
