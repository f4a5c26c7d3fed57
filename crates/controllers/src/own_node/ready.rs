//! The condition `Ready` of the Node, as a kubelet writes it. Pure: the time is an argument.

use std::time::Duration;

use portolan_schema::{
    json::{Value, json},
    shape::timestamp,
};

/// Time from one heartbeat to the next if nothing else changes (`nodeStatusReportFrequency` of the kubelet).
const HEARTBEAT: Duration = Duration::from_secs(5 * 60);
const REASON: &str = "PortolanUp";
const MESSAGE: &str = "portolan up is running";

/// Returns `status.conditions` with the condition, or `None` if the present ones have it and its heartbeat is recent.
/// Conditions of other types stay.
pub(super) fn conditions(present: Option<&Value>, now: &str) -> Option<Value> {
    let mut all = present.and_then(Value::as_array).cloned().unwrap_or_default();
    let old = all.iter().position(|it| text(it, "type") == Some("Ready")).map(|place| all.remove(place));
    let was_true = old.as_ref().filter(|old| text(old, "status") == Some("True"));
    let is_ours = |old: &&Value| (text(old, "reason"), text(old, "message")) == (Some(REASON), Some(MESSAGE));
    let beat = was_true.filter(is_ours).and_then(|old| text(old, "lastHeartbeatTime"));
    if beat.is_some_and(|beat| is_recent(beat, now)) {
        return None;
    }
    let since = was_true.and_then(|old| text(old, "lastTransitionTime")).unwrap_or(now);
    let ready = json!({
        "type": "Ready", "status": "True", "reason": REASON, "message": MESSAGE,
        "lastHeartbeatTime": now, "lastTransitionTime": since,
    });
    all.push(ready);
    Some(all.into())
}

/// A heartbeat of the future is not recent: the clock of the host has been set back.
fn is_recent(beat: &str, now: &str) -> bool {
    let seconds = |time: &str| timestamp::parse(time).map(|(seconds, _)| seconds);
    let (Some(beat), Some(now)) = (seconds(beat), seconds(now)) else { return false };
    u64::try_from(now.saturating_sub(beat)).is_ok_and(|age| age < HEARTBEAT.as_secs())
}

fn text<'a>(condition: &'a Value, field: &str) -> Option<&'a str> {
    condition.get(field).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "2026-03-01T10:00:00Z";

    #[test]
    fn a_heartbeat_keeps_the_time_of_the_transition() {
        let first = conditions(None, START).unwrap();
        assert_eq!(
            first,
            json!([{"type": "Ready", "status": "True", "reason": "PortolanUp",
                "message": "portolan up is running", "lastHeartbeatTime": START, "lastTransitionTime": START}])
        );
        assert_eq!(conditions(Some(&first), START), None);
        assert_eq!(conditions(Some(&first), "2026-03-01T10:04:59Z"), None);
        let later = "2026-03-01T10:05:00Z";
        let second = conditions(Some(&first), later).unwrap();
        assert_eq!(second.pointer("/0/lastHeartbeatTime"), Some(&json!(later)));
        assert_eq!(second.pointer("/0/lastTransitionTime"), Some(&json!(START)));
        assert!(conditions(Some(&second), START).is_some(), "the clock was set back");
    }

    #[test]
    fn a_condition_of_others_is_replaced_and_other_types_stay() {
        let other = json!({"type": "NetworkUnavailable", "status": "False"});
        for old in [
            json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastHeartbeatTime": START,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}),
            json!({"type": "Ready"}),
            json!({"type": "Ready", "status": "True", "reason": "PortolanUp", "lastHeartbeatTime": "x"}),
        ] {
            let new = conditions(Some(&json!([old, other])), START).unwrap();
            assert_eq!(new.pointer("/0"), Some(&other));
            assert_eq!(new.pointer("/1/status"), Some(&json!("True")));
            assert_eq!(new.pointer("/1/lastTransitionTime"), Some(&json!(START)), "{old}");
            assert_eq!(new.as_array().unwrap().len(), 2);
        }
    }
}
