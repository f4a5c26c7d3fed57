//! What the API server answered, as items of the report.

use portolan_doctor::Code;
use portolan_doctor::checks::code_of;
use portolan_doctor::facts::Denied;
use portolan_proxy::preflight::{CheckResult, Item, Part};

use crate::cluster::access::Asked;

/// Returns an item for each finding; one if there is none.
pub(super) fn items(asked: &Asked) -> Vec<Item> {
    let item = |outcome, text: String| Item::new(Part::Api, outcome, text);
    let mut items: Vec<Item> = Vec::new();
    for resource in &asked.api.lacks {
        let text = format!("the API server has no {resource}: is it that of a cluster?");
        items.push(item(CheckResult::Failure, text));
    }
    for denied in &asked.api.denied {
        let Denied { verb, resource, answer, needed } = denied;
        let answer = answer.as_ref().map_or_else(String::new, |answer| format!(" ({answer})"));
        let outcome = if *needed { CheckResult::Failure } else { CheckResult::Warning };
        let text = format!("the API server does not permit: {verb} {resource}{answer}");
        items.push(item(outcome, text).with_mend(code_of(denied).usual_mend()));
    }
    for denied in &asked.api.denied_writes {
        let text = format!("the API server does not permit: {denied}");
        items.push(item(CheckResult::Warning, text).with_mend(Code::NodeWritesDenied.usual_mend()));
    }
    if let Some(failure) = &asked.api.failure {
        let text = format!("the API server cannot be reached: {failure}");
        items.push(item(CheckResult::Failure, text).with_mend(Code::ApiUnreachable.usual_mend()));
    }
    items.extend(asked.not_known.iter().map(|text| item(CheckResult::Warning, text.clone())));
    if items.is_empty() {
        let version =
            asked.api.version.as_ref().map_or_else(String::new, |version| format!(" (version {version})"));
        let text = format!("the API server answers, and permits what the agent needs{version}");
        items.push(item(CheckResult::Ok, text));
    }
    items.extend(asked.faults.iter().map(|fault| item(CheckResult::Warning, fault.clone())));
    items
}

#[cfg(test)]
mod tests {
    use portolan_doctor::facts::Api;

    use super::*;

    fn outcomes(asked: &Asked) -> Vec<(CheckResult, String)> {
        items(asked).into_iter().map(|item| (item.outcome, item.text)).collect()
    }

    #[test]
    fn what_the_agent_does_not_need_is_a_warning() {
        let denied = |verb: &str, resource: &str, answer: Option<&str>, needed| Denied {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            answer: answer.map(str::to_owned),
            needed,
        };
        let denied =
            vec![denied("list", "nodes", Some("forbidden"), true), denied("patch", "events", None, false)];
        let denied_writes = vec!["patch nodes, so the taint stays".to_owned()];
        let asked = Asked { api: Api { denied, denied_writes, ..Api::default() }, ..Asked::default() };
        let text = |what: &str| format!("the API server does not permit: {what}");
        assert_eq!(
            outcomes(&asked),
            [
                (CheckResult::Failure, text("list nodes (forbidden)")),
                (CheckResult::Warning, text("patch events")),
                (CheckResult::Warning, text("patch nodes, so the taint stays")),
            ]
        );
    }

    #[test]
    fn an_answer_without_findings_names_the_version() {
        let api = Api { version: Some("v1.36.0".to_owned()), ..Api::default() };
        let asked = Asked { api, faults: vec!["fault".to_owned()], ..Asked::default() };
        let answers = "the API server answers, and permits what the agent needs (version v1.36.0)".to_owned();
        assert_eq!(
            outcomes(&asked),
            [(CheckResult::Ok, answers), (CheckResult::Warning, "fault".to_owned())]
        );
    }
}
