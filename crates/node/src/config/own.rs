//! The sections that kube-proxy does not have: `addressGuard` and `readiness`. kube-proxy logs and ignores them.

use std::fmt;

use portolan_model::catalog::{AddressGuard, AddressOwner, GuardAction};
use serde_json::{Value, json};

use super::error::Problem;
use super::reader::{Section, choice, cidr, text};

const ACTIONS: &[(&str, GuardAction)] = &[
    (GuardAction::Allow.name(), GuardAction::Allow),
    (GuardAction::Warn.name(), GuardAction::Warn),
    (GuardAction::Refuse.name(), GuardAction::Refuse),
];

/// The longest name and the longest prefix of a key (`ValidateQualifiedName` in Kubernetes).
const NAME_MAX: usize = 63;
const PREFIX_MAX: usize = 253;

/// How the node shows that Services do not work on it yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The taint that is removed from the Node when everything has been programmed and read back once.
    pub taint: Option<Taint>,
    /// The type of a Node condition that is True until then and False afterwards.
    pub condition: Option<String>,
}

/// A taint of the Node, by key and effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// The key, such as `portolan.dev/agent-not-ready`.
    pub key: String,
    /// The effect, or `None` for every effect.
    pub effect: Option<TaintEffect>,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// No new pod without a toleration is placed on the node.
    NoSchedule,
    /// As few of them as possible are.
    PreferNoSchedule,
    /// None is, and those that run there are removed.
    NoExecute,
}

impl TaintEffect {
    const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// Returns the effect as the API spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl Taint {
    /// Parses `KEY` or `KEY:EFFECT`.
    ///
    /// # Errors
    /// The key is not a name of Kubernetes, or there is no such effect.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (key, effect) = match text.split_once(':') {
            Some((key, effect)) => (key, Some(effect)),
            None => (text, None),
        };
        let known = |name: &&str| TaintEffect::ALL.into_iter().find(|effect| effect.name() == *name);
        let effect = match effect {
            None => None,
            Some(name) => Some(known(&name).ok_or_else(|| Problem::NotOneOf {
                value: name.to_owned(),
                allowed: TaintEffect::ALL.map(TaintEffect::name).to_vec(),
            })?),
        };
        if is_key(key) {
            Ok(Self { key: key.to_owned(), effect })
        } else {
            Err(Problem::NotAKey { value: key.to_owned() })
        }
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        self.effect.map_or(Ok(()), |effect| write!(f, ":{}", effect.name()))
    }
}

impl Readiness {
    /// Returns true if there is something to write to the Node.
    pub const fn is_wanted(&self) -> bool {
        self.taint.is_some() || self.condition.is_some()
    }
}

/// Parses the type of a Node condition.
///
/// # Errors
/// The text is not a name of Kubernetes, or the kubelet sets this condition.
pub fn parse_condition(text: &str) -> Result<String, Problem> {
    if ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].contains(&text) {
        return Err(Problem::OfKubelet { value: text.to_owned() });
    }
    if is_key(text) { Ok(text.to_owned()) } else { Err(Problem::NotAKey { value: text.to_owned() }) }
}

/// Sets the actions in `OWNER=ACTION` texts, such as `nodeAddresses=Refuse`.
///
/// # Errors
/// The first text with an unknown owner or action, or without `=`.
pub fn set_actions<'a>(
    guard: &mut AddressGuard,
    texts: impl Iterator<Item = &'a str>,
) -> Result<(), Problem> {
    for text in texts {
        let (owner, action) = text.split_once('=').unwrap_or((text, ""));
        let owners = AddressOwner::ALL;
        let Some(owner) = owners.into_iter().find(|known| known.name() == owner) else {
            return Err(Problem::NotOneOf {
                value: owner.to_owned(),
                allowed: owners.map(AddressOwner::name).to_vec(),
            });
        };
        let Some(action) = GuardAction::ALL.into_iter().find(|known| known.name() == action) else {
            return Err(Problem::NotOneOf {
                value: action.to_owned(),
                allowed: GuardAction::ALL.map(GuardAction::name).to_vec(),
            });
        };
        guard.set(owner, action);
    }
    Ok(())
}

pub(super) fn read_guard(s: &mut Section<'_>, guard: &mut AddressGuard) {
    for owner in AddressOwner::ALL {
        let mut action = guard.action(owner);
        s.read(owner.name(), &mut action, choice(ACTIONS));
        guard.set(owner, action);
    }
    s.read_list("allowed", &mut guard.allowed, cidr);
}

pub(super) fn read_readiness(s: &mut Section<'_>, readiness: &mut Readiness) {
    s.read("taint", &mut readiness.taint, optional(Taint::parse));
    s.read("condition", &mut readiness.condition, optional(parse_condition));
}

/// Reads a text that may be empty.
fn optional<T>(parse: impl Fn(&str) -> Result<T, Problem>) -> impl Fn(&Value) -> Result<Option<T>, Problem> {
    move |value| {
        let text = text(value)?;
        if text.is_empty() { Ok(None) } else { parse(&text).map(Some) }
    }
}

pub(super) fn guard(guard: &AddressGuard) -> Value {
    let actions = AddressOwner::ALL.into_iter();
    let mut fields: serde_json::Map<String, Value> =
        actions.map(|owner| (owner.name().to_owned(), guard.action(owner).name().into())).collect();
    let allowed: Vec<String> = guard.allowed.iter().map(ToString::to_string).collect();
    fields.insert("allowed".to_owned(), allowed.into());
    Value::Object(fields)
}

pub(super) fn readiness(readiness: &Readiness) -> Value {
    let taint = readiness.taint.as_ref().map(Taint::to_string).unwrap_or_default();
    json!({ "taint": taint, "condition": readiness.condition.as_deref().unwrap_or_default() })
}

/// Returns true for a name of Kubernetes with or without a prefix: `NAME` or `DOMAIN/NAME`.
fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let consists_of = |part: &str, allowed: fn(&u8) -> bool| {
        let bytes = part.as_bytes();
        is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.iter().all(allowed)
    };
    let is_name = |name: &str| {
        name.len() <= NAME_MAX
            && consists_of(name, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
    };
    let is_label = |label: &str| {
        consists_of(label, |byte| byte.is_ascii_digit() || byte.is_ascii_lowercase() || *byte == b'-')
    };
    let is_domain = |domain: &str| domain.len() <= PREFIX_MAX && domain.split('.').all(is_label);
    is_name(name) && prefix.is_none_or(is_domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_have_a_key_and_perhaps_an_effect() {
        for text in
            ["portolan.dev/agent-not-ready", "a:NoSchedule", "a_b.C-d:NoExecute", "x.y/z:PreferNoSchedule"]
        {
            assert_eq!(Taint::parse(text).expect(text).to_string(), text);
        }
        let long = "a".repeat(64);
        for text in [
            "",
            ":NoSchedule",
            "a:",
            "a:No",
            "a=b:NoSchedule",
            "/a",
            "a/",
            "a/b/c",
            "A.b/c",
            "-a",
            "a b",
            &long,
        ] {
            assert!(Taint::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn conditions_of_the_kubelet_are_refused() {
        assert_eq!(parse_condition("NetworkUnavailable").as_deref(), Ok("NetworkUnavailable"));
        assert!(parse_condition("portolan.dev/ServicesUnavailable").is_ok());
        for text in ["Ready", "DiskPressure", "", "a b"] {
            assert!(parse_condition(text).is_err(), "{text}");
        }
    }

    #[test]
    fn actions_are_set_by_name() {
        let mut guard = AddressGuard::default();
        assert_eq!(set_actions(&mut guard, ["nodeAddresses=Refuse", "podCIDRs=Allow"].into_iter()), Ok(()));
        assert_eq!(guard.action(AddressOwner::Node), GuardAction::Refuse);
        assert_eq!(guard.action(AddressOwner::PodCidr), GuardAction::Allow);
        for text in ["nodes=Refuse", "podCIDRs", "podCIDRs=", "podCIDRs=refuse", "=Allow"] {
            assert!(set_actions(&mut guard, [text].into_iter()).is_err(), "{text}");
        }
    }
}
