//! Replaces fields of a configuration by those that the given flags set.

use portolan_node::config::{self, Configuration, FieldError, FieldErrors};
use serde_json::{Map, Value};

use super::apply;
use super::given::Given;

/// The section of the mode whose flags also set the fields of the nftables mode, and that section.
const BOTH: (&str, &str) = ("iptables.", "nftables.");

/// Returns a configuration with the fields of the given flags. A flag without a field has no effect here.
///
/// # Errors
/// A flag is wrong, or this version does not know the configuration.
pub(super) fn over(given: &Given, reported: &Value) -> anyhow::Result<Configuration> {
    let (mut of_flags, mut errors) = apply::configuration(given);
    apply::logging(given, &mut of_flags.logging, &mut errors);
    apply::portolan(given, &mut of_flags.portolan);
    let errors: Vec<FieldError> = errors.into_iter().map(|error| apply::name_flag(given, error)).collect();
    FieldErrors::from_list(errors)?;
    let of_flags = of_flags.to_v1alpha1();
    let mut merged = reported.clone();
    for flag in given.flags().filter(|flag| !flag.field.is_empty()) {
        // The flag `--address-guard` sets this section, except for `allowed`, which has a flag of its own.
        let allowed = at(&merged, "addressGuard.allowed").cloned();
        copy(&of_flags, &mut merged, flag.field);
        if flag.field == "addressGuard" {
            let guard = merged.get_mut("addressGuard").and_then(Value::as_object_mut);
            guard.zip(allowed).map(|(guard, allowed)| guard.insert("allowed".to_owned(), allowed));
        }
        if let Some(rest) = flag.field.strip_prefix(BOTH.0) {
            let other = format!("{}{rest}", BOTH.1);
            if at(&of_flags, &other).is_some() {
                copy(&of_flags, &mut merged, &other);
            }
        }
    }
    let configuration = config::parse(&merged.to_string())?;
    configuration.validate()?;
    Ok(configuration)
}

fn at<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    field.split('.').try_fold(object, |object, name| object.get(name))
}

/// Copies a field. One that is missing is removed.
fn copy(from: &Value, to: &mut Value, field: &str) {
    let (section, name) = field.rsplit_once('.').map_or(("", field), |(section, name)| (section, name));
    let mut target = to;
    for part in section.split('.').filter(|part| !part.is_empty()) {
        let Some(object) = target.as_object_mut() else { return };
        target = object.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
    let Some(object) = target.as_object_mut() else { return };
    match at(from, field) {
        Some(value) => object.insert(name.to_owned(), value.clone()),
        None => object.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};
    use portolan_model::catalog::AddressGuard;
    use portolan_node::config::Mode;

    use super::*;
    use crate::ProxyOptions;

    fn given(flags: &[&str]) -> Given {
        let command = ProxyOptions::augment_args(Command::new("proxy"));
        Given(command.try_get_matches_from([&["proxy"], flags].concat()).expect("flags"))
    }

    #[test]
    fn only_given_flags_replace_fields() {
        let mut guard = AddressGuard::default();
        guard.allowed.push("192.0.2.0/24".parse().expect("a network"));
        let reported = Configuration {
            mode: Some(Mode::Nftables),
            cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a network")],
            address_guard: guard,
            ..Configuration::default()
        };
        let reported = reported.to_v1alpha1();
        let same = over(&given(&[]), &reported).expect("a configuration");
        assert_eq!(same.to_v1alpha1(), reported);
        let flags = ["--proxy-mode=ipvs", "--masquerade-all", "--ipvs-scheduler=lc"];
        let other = over(&given(&flags), &reported).expect("a configuration");
        assert_eq!((other.mode, other.ipvs.scheduler.as_str()), (Some(Mode::Ipvs), "lc"));
        assert!(other.iptables.masquerade_all && other.nftables.masquerade_all);
        assert_eq!(other.cluster_cidrs, same.cluster_cidrs);
        let guarded =
            over(&given(&["--address-guard=nodeAddresses=Allow"]), &reported).expect("a configuration");
        assert_ne!(guarded.address_guard, same.address_guard);
        assert_eq!(guarded.address_guard.allowed, same.address_guard.allowed);
        let error = over(&given(&["--proxy-mode=fast"]), &reported).expect_err("no such mode").to_string();
        assert!(error.contains("--proxy-mode"), "{error}");
    }
}
