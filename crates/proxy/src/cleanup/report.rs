//! The report of a clean-up: one line for each object and setting, or the same as JSON or YAML.
//!
//! Pure: two surveys and the settings in, text out.

use std::collections::HashSet;
use std::fmt::Write as _;

use portolan_iptables::Variant;
use portolan_leftovers::{Found, Held, Object};
use portolan_model::Family;
use portolan_node::former::{Restored, Unrestored};
use serde::Serialize;

use super::settings::Settings;
use super::survey::{Survey, why_left};
use crate::packets::Output;

/// The report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// True if nothing was changed: the report says what would be done.
    dry_run: bool,
    /// Objects that are removed.
    remove: Vec<Item>,
    /// Kernel settings that get their former value.
    set: Vec<Setting>,
    /// What stays because others use it, or because its former value is not known.
    keep: Vec<Reason>,
    /// What stays although it should be removed.
    left: Vec<Reason>,
    /// How many of `left` are chains that rules of other programs lead to, and tables that processes own.
    #[serde(skip)]
    held: usize,
    /// What could not be read or removed.
    errors: Vec<String>,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Item {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<&'static str>,
    /// The variant of iptables.
    #[serde(skip_serializing_if = "Option::is_none")]
    iptables: Option<&'static str>,
    /// The table of iptables.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    name: String,
    /// The chain that a jump leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip)]
    line: String,
}

/// A kernel setting that gets its former value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Setting {
    name: String,
    value: u64,
    was: u64,
}

/// Something that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Reason {
    what: String,
    reason: String,
}

impl Report {
    /// Returns the report of a dry run.
    pub(super) fn planned(survey: Survey, settings: Settings) -> Self {
        let Survey { found: Found { objects, held, kept }, errors } = survey;
        let keep = kept.into_iter().map(|kept| (kept.object, kept.reason.to_owned()));
        let mut report = Self::new(true, &objects, held, keep.collect(), errors);
        report.add_settings(settings);
        report
    }

    /// Returns the report of a clean-up, from what there was before and after.
    pub(super) fn done(before: Survey, after: Survey, settings: Settings, mut errors: Vec<String>) -> Self {
        let Found { objects, held, kept } = after.found;
        let names = |objects: &[Object]| objects.iter().map(Object::to_string).collect::<HashSet<_>>();
        let mut still = names(&objects);
        still.extend(held.iter().map(|held| held.object.to_string()));
        let mut removed = before.found.objects;
        removed.retain(|object| !still.contains(&object.to_string()));
        errors.extend(after.errors);
        let keep = kept.into_iter().map(|kept| (kept.object, kept.reason.to_owned()));
        let mut report = Self::new(false, &removed, held, keep.collect(), errors);
        report.left.extend(objects.into_iter().map(why_left).map(Reason::from));
        report.add_settings(settings);
        report
    }

    fn new(
        dry_run: bool,
        objects: &[Object],
        held: Vec<Held>,
        keep: Vec<(Object, String)>,
        mut errors: Vec<String>,
    ) -> Self {
        // A fault of one place is found by the removal and by both surveys, with different beginnings.
        let mut seen: Vec<String> = Vec::new();
        errors.retain(|error| {
            let is_new = !seen.iter().any(|known| known.ends_with(error.as_str()));
            seen.push(error.clone());
            is_new
        });
        let keep = keep.into_iter().map(|(object, reason)| Reason { what: object.to_string(), reason });
        Self {
            dry_run,
            remove: objects.iter().map(Item::from).collect(),
            set: Vec::new(),
            keep: keep.collect(),
            held: held.len(),
            left: held.into_iter().map(Reason::from).collect(),
            errors,
        }
    }

    fn add_settings(&mut self, settings: Settings) {
        let Settings { restored, unrestored, failed, faults } = settings;
        let set =
            |Restored { wanted, written }| Setting { name: wanted.name(), value: wanted.value, was: written };
        self.set.extend(restored.into_iter().map(set));
        let kept = |Unrestored { wanted, present, reason, .. }| Reason {
            what: format!("setting {} = {present}", wanted.name()),
            reason,
        };
        self.keep.extend(unrestored.into_iter().map(kept));
        let left = |(_, reason)| Reason { what: "setting".to_owned(), reason };
        self.left.extend(failed.into_iter().map(left));
        self.errors.extend(faults);
    }

    /// Returns the number of things that are in the way of a complete clean-up. In a dry run, only what cannot be read
    /// counts.
    pub(super) fn failures(&self) -> usize {
        let left = if self.dry_run { 0 } else { self.left.len() };
        left.saturating_add(self.errors.len())
    }

    /// Returns how many objects others hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Logs what failed, what is left and what stays. What was removed has been logged.
    pub(super) fn log(&self) {
        for error in &self.errors {
            tracing::error!("{error}");
        }
        for Reason { what, reason } in &self.left {
            tracing::warn!(what, reason, "left");
        }
        for Reason { what, reason } in &self.keep {
            tracing::info!(what, reason, "stays");
        }
    }

    /// Returns the report in one of its forms.
    pub(super) fn rendered(&self, output: Output) -> anyhow::Result<String> {
        output.rendered(self, || self.text())
    }

    fn text(&self) -> String {
        let (remove, set, was, keep, left) = if self.dry_run {
            ("would remove", "would set", "is", "would keep", "cannot remove")
        } else {
            ("removed", "set", "was", "kept", "left")
        };
        let mut text = String::new();
        for item in &self.remove {
            let _ = writeln!(text, "{remove} {}", item.line);
        }
        for Setting { name, value, was: former } in &self.set {
            let _ = writeln!(text, "{set} {name} = {value} ({was} {former})");
        }
        for Reason { what, reason } in &self.keep {
            let _ = writeln!(text, "{keep} {what}: {reason}");
        }
        for Reason { what, reason } in &self.left {
            let _ = writeln!(text, "{left} {what}: {reason}");
        }
        for error in &self.errors {
            let _ = writeln!(text, "failed: {error}");
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    fn summary(&self) -> String {
        let is_empty = self.remove.is_empty() && self.set.is_empty();
        match (self.dry_run, self.failures()) {
            (true, 0) if is_empty => "nothing to remove".to_owned(),
            (true, 0) => {
                format!("would remove {} and set {}; nothing was changed", self.remove.len(), self.set.len())
            }
            (true, failures) => format!("{failures} could not be read; nothing was changed"),
            (false, 0) => {
                format!("removed {}, set {}; read again: nothing is left", self.remove.len(), self.set.len())
            }
            (false, _) => format!("{} left, {} failed", self.left.len(), self.errors.len()),
        }
    }
}

impl From<&Object> for Item {
    fn from(object: &Object) -> Self {
        Self {
            kind: object.kind.name(),
            family: object.family.map(Family::name),
            iptables: object.variant.map(Variant::place),
            table: object.table.clone(),
            name: object.name.clone(),
            to: object.to.clone(),
            line: object.to_string(),
        }
    }
}

impl From<Held> for Reason {
    fn from(held: Held) -> Self {
        Self { what: held.object.to_string(), reason: held.reason }
    }
}

#[cfg(test)]
mod tests {
    use portolan_leftovers::{Kept, Kind};
    use portolan_node::sysctl::Wanted;

    use super::*;

    const LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

    fn object(kind: Kind, name: &str) -> Object {
        Object::new(kind, Some(Family::Ipv4), name)
    }

    fn survey(objects: &[Object]) -> Survey {
        let held = Held {
            object: object(Kind::Chain, "KUBE-MARK-MASQ"),
            reason: "a rule in chain MINE leads to it".to_owned(),
        };
        let kept =
            Kept { object: object(Kind::Chain, "KUBE-FIREWALL"), reason: "it has rules of other programs" };
        let found = Found { objects: objects.to_vec(), held: vec![held], kept: vec![kept] };
        Survey { found, errors: Vec::new() }
    }

    fn settings() -> Settings {
        let restored = Restored { wanted: Wanted::exactly(LOCALNET, 0), written: 1 };
        let unrestored = Unrestored {
            wanted: Wanted::exactly("/proc/sys/net/netfilter/nf_conntrack_max", 65_536),
            present: "4096".to_owned(),
            reason: "another program changed it after the agent had written 131072".to_owned(),
            is_held: false,
        };
        Settings { restored: vec![restored], unrestored: vec![unrestored], ..Settings::default() }
    }

    fn objects() -> [Object; 2] {
        [object(Kind::Table, "portolan"), object(Kind::Chain, "KUBE-SERVICES")]
    }

    #[test]
    fn a_dry_run_says_what_would_be_done() {
        let report = Report::planned(survey(&objects()), settings());
        insta::assert_snapshot!(report.text(), @r"
        would remove table ip portolan
        would remove chain ip KUBE-SERVICES
        would set net.ipv4.conf.all.route_localnet = 0 (is 1)
        would keep chain ip KUBE-FIREWALL: it has rules of other programs
        would keep setting net.netfilter.nf_conntrack_max = 4096: another program changed it after the agent had written 131072
        cannot remove chain ip KUBE-MARK-MASQ: a rule in chain MINE leads to it
        would remove 2 and set 1; nothing was changed
        ");
        assert_eq!(report.failures(), 0, "what stays is no failure of a dry run");
        let nothing = Report::planned(Survey::default(), Settings::default());
        assert_eq!(nothing.text(), "nothing to remove\n");
    }

    #[test]
    fn what_is_there_after_the_removal_is_left() {
        let [table, chain] = objects();
        let after = survey(std::slice::from_ref(&table));
        let errors = vec!["our table cannot be removed: refused".to_owned(), "refused".to_owned()];
        let report = Report::done(survey(&[table, chain]), after, settings(), errors);
        insta::assert_snapshot!(report.text(), @r"
        removed chain ip KUBE-SERVICES
        set net.ipv4.conf.all.route_localnet = 0 (was 1)
        kept chain ip KUBE-FIREWALL: it has rules of other programs
        kept setting net.netfilter.nf_conntrack_max = 4096: another program changed it after the agent had written 131072
        left chain ip KUBE-MARK-MASQ: a rule in chain MINE leads to it
        left table ip portolan: it was not removed, or is there again: stop the agent or the kube-proxy that writes it, then run this again
        failed: our table cannot be removed: refused
        2 left, 1 failed
        ");
        assert_eq!((report.failures(), report.held()), (3, 1));
    }

    #[test]
    fn the_forms_have_the_same_content() {
        let report = Report::planned(survey(&objects()), settings());
        let json = report.rendered(Output::Json).expect("JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let yaml = report.rendered(Output::Yaml).expect("YAML");
        let yaml: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(json, yaml);
        insta::assert_snapshot!(report.rendered(Output::Yaml).expect("YAML"), @r"
        dryRun: true
        remove:
        - kind: table
          family: IPv4
          name: portolan
        - kind: chain
          family: IPv4
          name: KUBE-SERVICES
        set:
        - name: net.ipv4.conf.all.route_localnet
          value: 0
          was: 1
        keep:
        - what: chain ip KUBE-FIREWALL
          reason: it has rules of other programs
        - what: setting net.netfilter.nf_conntrack_max = 4096
          reason: another program changed it after the agent had written 131072
        left:
        - what: chain ip KUBE-MARK-MASQ
          reason: a rule in chain MINE leads to it
        errors: []
        ");
    }
}
