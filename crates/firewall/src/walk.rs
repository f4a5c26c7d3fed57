//! Follows a packet through the rules of a base chain.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{
    Answer, CONNTRACK_PRIORITY, Chain, Effect, Hook, Owner, Packet, Passage, Rule, Ruleset,
    TRANSLATION_PRIORITY, Test,
};

/// A rule, or the policy of a base chain, that a packet meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit<'a> {
    /// The base chain through which the packet came.
    pub base: &'a Chain,
    /// The chain of the rule.
    pub chain: &'a Chain,
    /// The rule; `None` for the policy of the base chain.
    pub rule: Option<&'a Rule>,
    /// What happens to the packet.
    pub kind: Kind,
    /// Conditions, of this rule and of those that lead to it, that only some of the packets may fulfil.
    pub only_if: Vec<&'a Test>,
    /// True if an earlier rule may decide about some of the packets.
    pub unless: bool,
}

/// What happens to a packet that is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is dropped or refused.
    Stop,
    /// Its destination is translated, or it is passed to a socket.
    Redirect,
    /// It is exempt from connection tracking.
    NoTrack,
    /// It ends the chain before the rules that lead to Services, and is not translated.
    NotTranslated,
    /// Something decides that is not looked at, such as a program that gets the packet from a queue.
    NotJudged,
    /// It passes rules of a program that has network policies. They are not looked at.
    Policies(Owner),
}

impl Hit<'_> {
    /// Returns true if all packets of the description are hit.
    pub fn is_certain(&self) -> bool {
        self.only_if.is_empty() && !self.unless
    }
}

/// Deepest nesting of jumps. The kernel allows 16 (`NFT_JUMP_STACK_SIZE`); a saved ruleset may be anything.
const DEPTH: usize = 32;
/// The chain of kube-proxy that leads to those of Services.
const SERVICES: &str = "KUBE-SERVICES";
/// The chain of kube-proxy that accepts packets of Services.
const FORWARD: &str = "KUBE-FORWARD";
/// Largest number of rules that are looked at for one packet and base chain. Chains to which many rules jump are walked
/// once for each jump.
const RULES: usize = 200_000;
/// `NF_IP_PRI_NAT_SRC` (`netfilter_ipv4.h`).
const SOURCE_TRANSLATION_PRIORITY: i32 = 100;

/// Returns the rules of a base chain that stop, redirect or exempt packets of a description, and of the chains to which
/// it leads. Rules of proxies and of network plug-ins that know Services are left out: they belong to Services, or to
/// network policies.
pub fn walk<'a>(ruleset: &'a Ruleset, base: &'a Chain, packet: &Packet) -> Vec<Hit<'a>> {
    let (hits, only_if) = (Vec::new(), Vec::new());
    let mut walk =
        Walk { ruleset, base, packet, hits, only_if, unless: false, left: RULES, has_given_up: false };
    let end = walk.chain(base, 0);
    let drops = base.base.is_some_and(|base| base.drops);
    if end == End::Returned && drops {
        walk.hit(base, None, Kind::Stop);
    }
    walk.hits
}

/// Returns what rules of other programs do to a packet of a connection to a Service, in the order in which the packet
/// meets them. `before` describes it before its destination is translated, `after` describes it afterwards. `passages` are
/// the hooks that it passes, such as prerouting, forward and postrouting.
pub fn along<'a>(
    ruleset: &'a Ruleset,
    before: &Packet,
    after: &Packet,
    passages: &[Passage],
) -> Vec<Hit<'a>> {
    let mut hits = Vec::new();
    for passage in passages {
        for chain in ruleset.base_chains(before.family, passage.hook()) {
            let Some(is_translated) = chain.base.and_then(|base| passage.sees_translated(base)) else {
                continue;
            };
            let Some(is_sure) = is_called(chain, before, after) else { continue };
            let owner = Owner::of(&chain.place, &chain.name);
            if owner.has_policies() {
                let (kind, only_if) = (Kind::Policies(owner), Vec::new());
                hits.push(Hit { base: chain, chain, rule: None, kind, only_if, unless: false });
            }
            if owner.knows_services() {
                continue;
            }
            let packet = as_seen_by(chain, if is_translated { after } else { before });
            let mut found = walk(ruleset, chain, &packet);
            for hit in &mut found {
                hit.unless |= !is_sure;
            }
            // Connection tracking has seen the packet by then.
            let is_too_late = |hit: &Hit<'_>| hit.kind == Kind::NoTrack && !is_before_tracking(chain);
            hits.extend(found.into_iter().filter(|hit| !is_too_late(hit)));
        }
    }
    hits
}

/// Returns the packet as a base chain sees it. Chains after the translation of sources see an address of this node as the source of
/// a masqueraded packet. Which address it is depends on the interface.
fn as_seen_by<'p>(chain: &Chain, packet: &'p Packet) -> Cow<'p, Packet> {
    let is_after = chain.base.is_some_and(|base| match base.hook {
        Hook::Postrouting => base.priority > SOURCE_TRANSLATION_PRIORITY,
        Hook::Egress => true,
        _ => false,
    });
    if !packet.leaves_masqueraded || !is_after {
        return Cow::Borrowed(packet);
    }
    Cow::Owned(Packet { source: None, source_is_local: Some(true), ..packet.clone() })
}

/// Returns true if a base chain of type nat leads to kube-proxy's chain of Services.
fn leads_to_services(base: &Chain) -> bool {
    let leads = |rule: &Rule| matches!(&rule.effect, Effect::Jump(to) if to == SERVICES);
    base.base.is_some_and(|base| base.nat) && base.rules.iter().any(leads)
}

/// Returns true if the kernel calls a base chain before connection tracking looks at the packet.
fn is_before_tracking(chain: &Chain) -> bool {
    chain.base.is_some_and(|base| {
        matches!(base.hook, Hook::Prerouting | Hook::Output) && base.priority < CONNTRACK_PRIORITY
    })
}

/// Returns true if a base chain is certainly called for a packet, and `None` if it is certainly not. Chains of type nat see the
/// first packet of a connection only, and those of destinations are left out once one has translated the packet.
fn is_called(chain: &Chain, before: &Packet, after: &Packet) -> Option<bool> {
    let Some(base) = chain.base.filter(|base| base.nat) else { return Some(true) };
    if before.established {
        return None;
    }
    if !matches!(base.hook, Hook::Prerouting | Hook::Output) || !after.translated {
        return Some(true);
    }
    if before.translated {
        return None;
    }
    match base.priority.cmp(&TRANSLATION_PRIORITY) {
        Ordering::Less => Some(true),
        // The kernel does not say which of the chains of one priority is the first.
        Ordering::Equal => Some(leads_to_services(chain)),
        Ordering::Greater => None,
    }
}

/// How the evaluation of a chain ended for a packet that fulfils the conditions on the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Some rule decided.
    Decided,
    /// The calling chain goes on.
    Returned,
}

struct Walk<'a, 'p> {
    ruleset: &'a Ruleset,
    base: &'a Chain,
    packet: &'p Packet,
    hits: Vec<Hit<'a>>,
    only_if: Vec<&'a Test>,
    unless: bool,
    left: usize,
    /// True if not all rules were looked at.
    has_given_up: bool,
}

impl<'a> Walk<'a, '_> {
    fn chain(&mut self, chain: &'a Chain, depth: usize) -> End {
        for rule in &chain.rules {
            if self.left == 0 || depth > DEPTH {
                if !std::mem::replace(&mut self.has_given_up, true) {
                    self.hit(chain, Some(rule), Kind::NotJudged);
                }
                self.unless = true;
                return End::Returned;
            }
            self.left -= 1;
            let before = self.only_if.len();
            let Some(sure) = self.enter(rule) else { continue };
            let end = self.effect(chain, rule, sure, depth);
            self.only_if.truncate(before);
            if let Some(end) = end {
                return end;
            }
        }
        End::Returned
    }

    /// Adds the conditions that may be true. Returns true if all are, and `None` if one is not.
    fn enter(&mut self, rule: &'a Rule) -> Option<bool> {
        let before = self.only_if.len();
        for test in &rule.tests {
            match test.answer(self.packet) {
                Answer::Yes => {}
                Answer::Maybe => self.only_if.push(test),
                Answer::No => {
                    self.only_if.truncate(before);
                    return None;
                }
            }
        }
        Some(self.only_if.len() == before)
    }

    /// Applies a rule. Returns how the chain ends; `None` if the next rule is next. `sure` is true if all packets that
    /// reach the rule match it.
    fn effect(&mut self, chain: &'a Chain, rule: &'a Rule, sure: bool, depth: usize) -> Option<End> {
        let decided = sure.then_some(End::Decided);
        match &rule.effect {
            Effect::Continue => None,
            Effect::NoTrack => {
                self.hit(chain, Some(rule), Kind::NoTrack);
                None
            }
            Effect::Drop | Effect::Reject => {
                self.hit(chain, Some(rule), Kind::Stop);
                decided
            }
            Effect::Redirect if !self.translates_sources() => {
                self.hit(chain, Some(rule), Kind::Redirect);
                decided
            }
            Effect::Redirect | Effect::Accept => {
                self.hit_before_services(chain, rule);
                self.unless |= !(sure && self.only_if.is_empty());
                decided
            }
            Effect::Unknown => {
                self.hit(chain, Some(rule), Kind::NotJudged);
                self.unless = true;
                None
            }
            Effect::Return => {
                if chain == self.base {
                    self.hit_before_services(chain, rule);
                }
                self.unless |= !sure;
                sure.then_some(End::Returned)
            }
            Effect::Jump(to) => {
                let end = self.jump(chain, rule, to, depth);
                (sure && end == End::Decided).then_some(End::Decided)
            }
            Effect::Goto(to) => {
                let end = self.jump(chain, rule, to, depth);
                if chain == self.base && end == End::Returned {
                    self.hit_before_services(chain, rule);
                }
                self.unless |= !sure;
                sure.then_some(end)
            }
        }
    }

    /// Returns true at the hooks where `NETMAP`, the only target there that is read as [`Effect::Redirect`], translates sources.
    fn translates_sources(&self) -> bool {
        self.base.base.is_some_and(|base| matches!(base.hook, Hook::Input | Hook::Postrouting))
    }

    fn jump(&mut self, from: &'a Chain, rule: &'a Rule, to: &str, depth: usize) -> End {
        let place = &from.place;
        let owner = Owner::of(place, to);
        if owner.has_policies() {
            self.hit(from, Some(rule), Kind::Policies(owner));
        }
        if let (Owner::KubeProxy, Some(masqueraded)) = (owner, self.packet.masqueraded) {
            return self.kube_proxy(to, masqueraded);
        }
        let is_nat = self.base.base.is_some_and(|base| base.nat);
        if owner == Owner::KubeProxy && self.packet.of_service && !is_nat && to != FORWARD {
            // It accepts packets to health-check node ports, and none of a Service. What it drops or refuses follows from the Services.
            return End::Returned;
        }
        if owner.knows_services() {
            // It may decide about some packets: a proxy translates those of Services.
            self.unless = true;
            return End::Returned;
        }
        match self.ruleset.chain(place, to) {
            Some(chain) => self.chain(chain, depth.saturating_add(1)),
            None => End::Returned,
        }
    }

    /// Returns how a chain of kube-proxy ends for a packet that Services lead to an endpoint.
    fn kube_proxy(&self, chain: &str, masqueraded: bool) -> End {
        let decides = match chain {
            // It translates the packet.
            SERVICES => self.base.base.is_some_and(|base| base.nat),
            // It accepts what has the mark of masquerading, and established connections.
            FORWARD => masqueraded || self.packet.established,
            "KUBE-POSTROUTING" => masqueraded,
            _ => false,
        };
        if decides { End::Decided } else { End::Returned }
    }

    /// Adds a hit for a rule that ends a chain which leads to Services, before it does.
    fn hit_before_services(&mut self, chain: &'a Chain, rule: &'a Rule) {
        if self.packet.masqueraded.is_some() && !self.packet.translated && leads_to_services(self.base) {
            self.hit(chain, Some(rule), Kind::NotTranslated);
        }
    }

    fn hit(&mut self, chain: &'a Chain, rule: Option<&'a Rule>, kind: Kind) {
        let (base, only_if, unless) = (self.base, self.only_if.clone(), self.unless);
        self.hits.push(Hit { base, chain, rule, kind, only_if, unless });
    }
}

#[cfg(test)]
mod tests;
