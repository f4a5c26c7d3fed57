//! The rules that match the frontends of a Service port. They are in chains that all Service ports share.

use std::fmt::Display;
use std::net::IpAddr;

use portolan_model::table::Disposition;
use portolan_model::{Frontend, InternalPolicy};

use super::fixed::{EXTERNAL_SERVICES, LOOPBACK, NODE_PORTS, PROXY_FIREWALL, SERVICES};
use super::name::Kind;
use super::options::COUNTER_LOCALHOST;
use super::rule::{self, Comment, IptablesTable, Rule, UNTRANSLATED};
use super::service::Service;

/// Returns the rules of a Service port, in order within each chain.
pub(super) fn rules(service: &Service<'_>, health_check_port: Option<u16>) -> Vec<Rule> {
    let mut rules = Rules { service, list: Vec::new() };
    let frontends = &service.forwarding.frontends;
    for frontend in frontends {
        match *frontend {
            Frontend::ClusterIp(address, port) => rules.cluster_ip(address, port),
            Frontend::ExternalIp(address, port) => rules.external_ip(address, port),
            Frontend::LoadBalancerIp(address, port) => rules.load_balancer_ip(address, port),
            Frontend::NodePort(port) => rules.node_port(port),
        }
    }
    if let Some(port) = health_check_port {
        let comment = Comment(format_args!("{} health check node port", service.name));
        rules.add(
            IptablesTable::Filter,
            NODE_PORTS,
            format_args!("{comment} -m tcp -p tcp --dport {port} -j ACCEPT"),
        );
    }
    rules.list
}

struct Rules<'a> {
    service: &'a Service<'a>,
    list: Vec<Rule>,
}

impl Rules<'_> {
    fn cluster_ip(&mut self, address: IpAddr, port: u16) {
        let service = self.service;
        let to = self.to(address, port);
        let outcome = service.forwarding.internal();
        if let Some(verdict) = self.verdict(outcome) {
            self.add(IptablesTable::Filter, SERVICES, verdict.rule(&to));
            return;
        }
        let chain = service.chain(match service.forwarding.internal_policy {
            InternalPolicy::Cluster => Kind::Cluster,
            InternalPolicy::Local => Kind::Local,
        });
        let comment = Comment(format_args!("{} cluster IP", service.name));
        self.add(IptablesTable::Nat, SERVICES, format_args!("{comment} {to} -j {chain}"));
    }

    fn external_ip(&mut self, address: IpAddr, port: u16) {
        let to = self.to(address, port);
        if self.service.has_external_chain() {
            let chain = self.service.chain(Kind::External);
            let comment = Comment(format_args!("{} external IP", self.service.name));
            self.add(IptablesTable::Nat, SERVICES, format_args!("{comment} {to} -j {chain}"));
        }
        self.without_external(&to);
    }

    fn load_balancer_ip(&mut self, address: IpAddr, port: u16) {
        let service = self.service;
        let to = self.to(address, port);
        if service.has_external_chain() {
            let kind = if service.has_firewall() { Kind::Firewall } else { Kind::External };
            let comment = Comment(format_args!("{} loadbalancer IP", service.name));
            let rule = format!("{comment} {to} -j {}", service.chain(kind));
            self.add(IptablesTable::Nat, SERVICES, rule);
        }
        if service.has_firewall() {
            let text =
                format_args!("{} traffic not accepted by {}", service.name, service.chain(Kind::Firewall));
            let rule = format!("{} {to} {} -j DROP", Comment(text), self.untaken());
            self.add(IptablesTable::Filter, PROXY_FIREWALL, rule);
        }
        self.without_external(&to);
    }

    fn node_port(&mut self, port: u16) {
        let service = self.service;
        let (name, protocol) = (&service.name, service.protocol);
        let proto = format!("-m {protocol} -p {protocol}");
        let context = service.context;
        if service.has_external_chain() {
            let chain = service.chain(Kind::External);
            let comment = format!("-m comment --comment {name}");
            let on_loopback = context.options.on_loopback(context.settings.family);
            if on_loopback && context.options.count_localhost {
                let count = format_args!("-m nfacct --nfacct-name {COUNTER_LOCALHOST}");
                self.add(
                    IptablesTable::Nat,
                    NODE_PORTS,
                    format_args!("{comment} {proto} -d {LOOPBACK} --dport {port} {count} -j {chain}"),
                );
            }
            self.add(
                IptablesTable::Nat,
                NODE_PORTS,
                format_args!("{comment} {proto} --dport {port} -j {chain}"),
            );
        }
        self.without_external(&format!("-m addrtype --dst-type LOCAL {proto} --dport {port}"));
    }

    /// Refuses or drops traffic from outside that has no endpoint. Traffic of this node and of its pods has been
    /// translated before, where it has endpoints.
    fn without_external(&mut self, to: &str) {
        if let Some(verdict) = self.verdict(self.service.forwarding.external()) {
            let to = format!("{to} {}", self.untaken());
            self.add(IptablesTable::Filter, EXTERNAL_SERVICES, verdict.rule(&to));
        }
    }

    /// Matches packets that no Service has led to an endpoint. An endpoint can have the address and port of another Service, if
    /// it is an address of a node. The owner of listeners connects to it without a translation.
    fn untaken(&self) -> String {
        let owner = self.service.context.options.redirect.map(|redirect| redirect.own_mark);
        let others = owner.map(|mark| format!(" -m mark ! --mark {mark:#010x}/{mark:#010x}"));
        format!("{UNTRANSLATED}{}", others.unwrap_or_default())
    }

    fn verdict(&self, outcome: Disposition<'_>) -> Option<Verdict<'_>> {
        let (target, why) = match outcome {
            Disposition::Backends(_) => return None,
            Disposition::Reject => (rule::refusal(self.service.protocol), "has no endpoints"),
            Disposition::Drop => ("DROP", "has no local endpoints"),
        };
        Some(Verdict { name: &self.service.name, why, target })
    }

    fn to(&self, address: IpAddr, port: u16) -> String {
        let protocol = self.service.protocol;
        format!("-m {protocol} -p {protocol} -d {address} --dport {port}")
    }

    fn add(&mut self, table: IptablesTable, chain: &'static str, text: impl Display) {
        self.list.push(Rule { table, chain, text: text.to_string() });
    }
}

struct Verdict<'a> {
    name: &'a str,
    why: &'static str,
    target: &'static str,
}

impl Verdict<'_> {
    fn rule(&self, to: &str) -> String {
        format!("{} {to} -j {}", Comment(format_args!("{} {}", self.name, self.why)), self.target)
    }
}
