use portolan_model::catalog::{AddressOwner, GuardAction};

use super::*;

pub(super) fn the_sections_of_portolan() {
    for owner in AddressOwner::ALL {
        let path = format!("addressGuard.{}", owner.name());
        let set = GuardAction::ALL.map(|action| (action.name(), action));
        let bad =
            [("Deny", "write one of: Allow, Warn, Refuse"), ("true", "quotes"), ("''", "is not supported")];
        field(&path, |c| c.address_guard.action(owner), owner.default_action(), &set, &bad);
    }
    let allowed = |c: Configuration| c.address_guard.allowed;
    let nets: Vec<IpNet> = ["192.0.2.0/24", "fd00::/64"].map(|net| net.parse().expect("a CIDR")).into();
    let bad = [("[192.0.2.1]", "is not a CIDR"), ("192.0.2.0/24", "a list")];
    field("addressGuard.allowed", allowed, Vec::new(), &[("[192.0.2.0/24, 'fd00::/64']", nets)], &bad);

    let taint = |c: Configuration| c.readiness.taint.map(|taint| taint.to_string());
    let set = [
        ("a.b/c", Some("a.b/c".to_owned())),
        ("'a:NoExecute'", Some("a:NoExecute".to_owned())),
        ("''", None),
    ];
    let bad =
        [("'a:Never'", "NoSchedule, PreferNoSchedule, NoExecute"), ("'a b'", "not a key"), ("1", "quotes")];
    field("readiness.taint", taint, None, &set, &bad);
    let set = [("NetworkUnavailable", Some("NetworkUnavailable".to_owned())), ("''", None)];
    let bad = [("Ready", "condition of the kubelet"), ("a/b/c", "not a key")];
    field("readiness.condition", |c| c.readiness.condition, None, &set, &bad);
}
