//! A table of requests and the answers of Kubernetes v1.36, replayed on the file and on etcd. The rows are in the folder
//! `answers`, one file for each subject; its README describes the format. Each row makes its own object and deletes it.

mod row;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use portolan_testkit::HttpClient;
use serde_json::{Value, json};

use crate::site::{Backing, PATIENCE, Site};
use row::{Answer, Row, Verb};
use world::overlay;

/// The subjects and their rows.
const TABLE: [(&str, &str); 10] = [
    ("whole", include_str!("answers/whole.txt")),
    ("metadata", include_str!("answers/metadata.txt")),
    ("zero", include_str!("answers/zero.txt")),
    ("service", include_str!("answers/service.txt")),
    ("types", include_str!("answers/types.txt")),
    ("endpoints", include_str!("answers/endpoints.txt")),
    ("node", include_str!("answers/node.txt")),
    ("others", include_str!("answers/others.txt")),
    ("apply", include_str!("answers/apply.txt")),
    ("verbs", include_str!("answers/verbs.txt")),
];
/// Rows that the table has at least, counted for each kind and verb.
const LEAST: usize = 600;
/// Failed rows that are printed.
const PRINTED: usize = 40;
/// Fields whose values the server allocates.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", "healthCheckNodePort", "nodePort"];

#[test]
fn the_file_answers_as_the_table_says() {
    replay(&Site::start(Backing::File, &world::ARGUMENTS).unwrap());
}

#[test]
fn etcd_answers_as_the_table_says() {
    if let Some(site) = Site::start(Backing::Etcd(1), &world::ARGUMENTS) {
        replay(&site);
    }
}

#[test]
fn the_table_has_every_kind_and_verb() {
    let rows = rows();
    assert!(rows.len() >= LEAST, "{} rows", rows.len());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &rows {
        *counts.entry(row.kind.name).or_default() += 1;
    }
    println!("{} rows: {counts:?}", rows.len());
    assert!(world::KINDS.iter().all(|kind| counts.contains_key(kind.name)), "{counts:?}");
    let missing: Vec<Verb> =
        Verb::ALL.into_iter().filter(|verb| rows.iter().all(|row| row.verb != *verb)).collect();
    assert!(missing.is_empty(), "no rows for {missing:?}");
}

#[test]
fn the_table_has_every_resource_and_verb_of_discovery() {
    let site = Site::start(Backing::File, &world::ARGUMENTS).unwrap();
    let address = site.addresses()[0];
    let listed = site.namespace.run(|| discovered(&mut HttpClient::new(address, PATIENCE))).unwrap();
    // A refusal of the method is no row for the verb.
    let rows = rows().into_iter().filter(|row| row.answer.code() != 405);
    let answered: BTreeSet<String> = rows
        .map(|row| {
            let ((version, plural), (part, verb)) = (row.kind.discovered(), row.verb.discovered());
            format!("{version} {plural}{part} {verb}")
        })
        .collect();
    assert!(listed.len() > 80, "{listed:?}");
    let missing: Vec<&String> = listed.difference(&answered).collect();
    assert!(missing.is_empty(), "no rows for {missing:#?}");
    let not_listed: Vec<&String> = answered.difference(&listed).collect();
    assert!(not_listed.is_empty(), "discovery does not list {not_listed:#?}");
}

/// Returns the version, resource and verb of each path and method that discovery lists.
fn discovered(client: &mut HttpClient) -> BTreeSet<String> {
    let mut get = |path: &str| -> Value {
        serde_json::from_slice(&client.request("GET", path, &[], b"").unwrap().body).unwrap()
    };
    let groups = get("/apis");
    let mut versions = vec!["v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            versions.push(version["groupVersion"].as_str().unwrap().to_owned());
        }
    }
    let mut found = BTreeSet::new();
    for version in versions {
        let list = get(&format!("/{}/{version}", if version == "v1" { "api" } else { "apis" }));
        for resource in list["resources"].as_array().unwrap() {
            for verb in resource["verbs"].as_array().unwrap() {
                let (plural, verb) = (resource["name"].as_str().unwrap(), verb.as_str().unwrap());
                found.insert(format!("{version} {plural} {verb}"));
            }
        }
    }
    found
}

fn rows() -> Vec<Row> {
    TABLE.iter().flat_map(|(subject, text)| row::parse(subject, text)).collect()
}

fn replay(site: &Site) {
    let address = site.addresses()[0];
    let failures = site.namespace.run(|| {
        let mut client = HttpClient::new(address, PATIENCE);
        let rows = rows();
        let failures = rows.iter().enumerate().filter_map(|(number, row)| check(&mut client, row, number));
        failures.collect::<Vec<String>>()
    });
    let failures = failures.unwrap();
    let shown = failures.iter().take(PRINTED).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} rows differ:\n{shown}", failures.len());
}

/// Sends the requests of a row. Returns a description if the answer is another one.
fn check(client: &mut HttpClient, row: &Row, number: usize) -> Option<String> {
    let name = row.kind.name_of(number);
    let mut object = None;
    if !row.verb.creates() && row.kind.is_stored() {
        let body = overlay(row.kind.base(&name), &row.before);
        let (status, created) =
            send(client, "POST", &row.kind.collection("table-before"), "application/json", &body.to_string());
        if status != 201 {
            return Some(format!("{}: the object before: {status} {created}", row.place));
        }
        object = Some(created);
    }
    let (method, path, media_type, body) = request(row, &name, object.as_ref());
    let (status, answer) = match row.verb {
        Verb::Watch => first_event(client, &path),
        _ => send(client, method, &path, media_type, &body),
    };
    let made = answer["metadata"]["name"].as_str().unwrap_or(&name).to_owned();
    let fault = fault(&row.answer, &made, status, &answer);
    send(client, "DELETE", &row.kind.object(&made), "application/json", "");
    fault.map(|fault| {
        format!("{}: {method} {} as {:?}: {fault}\n    {body}", row.place, row.kind.name, row.verb)
    })
}

fn send(client: &mut HttpClient, method: &str, path: &str, media_type: &str, body: &str) -> (u16, Value) {
    let answer = client.request(method, path, &[("content-type", media_type)], body.as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// Sends a watch and returns its first event, or the refusal.
fn first_event(client: &mut HttpClient, path: &str) -> (u16, Value) {
    let mut lines = client.lines(path).unwrap();
    let status = lines.status;
    let answer =
        if status == 200 { lines.next_line().unwrap().unwrap_or_default() } else { lines.rest().unwrap() };
    (status, serde_json::from_slice(&answer).unwrap_or_default())
}

/// Returns method, path, media type and body of the request.
fn request(row: &Row, name: &str, object: Option<&Value>) -> (&'static str, String, &'static str, String) {
    let kind = row.kind;
    let with_manager = |path: String| {
        let query = if row.query.is_empty() { String::new() } else { format!("&{}", row.query) };
        format!("{path}?fieldManager=table{query}")
    };
    let one = || with_manager(kind.object(name));
    let below = |part: &str| with_manager(format!("{}/{part}", kind.object(name)));
    let change = || row.request();
    let replaced = || overlay(object.cloned().map(|it| kind.to_replace(it)).unwrap_or_default(), &change());
    let applied = || overlay(kind.identity(name), &change());
    // The collection, as far as it is the object of the row.
    let alone = |query: &str| {
        let path = format!("{}?fieldSelector=metadata.name%3D{name}{query}", kind.collection_path());
        if row.query.is_empty() { path } else { format!("{path}&{}", row.query) }
    };
    let options = || if row.text.is_empty() { String::new() } else { change().to_string() };
    let json = "application/json";
    match row.verb {
        Verb::Create | Verb::CreateAgain => {
            let body = overlay(kind.base(name), &change());
            ("POST", with_manager(kind.collection_path()), json, body.to_string())
        }
        Verb::Yaml => {
            let path = with_manager(kind.collection_path());
            ("POST", path, "application/yaml", row.text.replace("NAME", name).replace("\\n", "\n"))
        }
        Verb::Put => ("PUT", one(), json, replaced().to_string()),
        Verb::Merge => ("PATCH", one(), "application/merge-patch+json", change().to_string()),
        Verb::Strategic => ("PATCH", one(), "application/strategic-merge-patch+json", change().to_string()),
        Verb::Json => ("PATCH", one(), "application/json-patch+json", change().to_string()),
        Verb::Apply => ("PATCH", one(), "application/apply-patch+yaml", applied().to_string()),
        Verb::ApplyNew => {
            let body = overlay(overlay(kind.identity(name), &kind.base(name)), &change());
            ("PATCH", one(), "application/apply-patch+yaml", body.to_string())
        }
        Verb::StatusPut => ("PUT", below("status"), json, replaced().to_string()),
        Verb::StatusMerge => ("PATCH", below("status"), "application/merge-patch+json", change().to_string()),
        Verb::StatusStrategic => {
            ("PATCH", below("status"), "application/strategic-merge-patch+json", change().to_string())
        }
        Verb::StatusJson => ("PATCH", below("status"), "application/json-patch+json", change().to_string()),
        Verb::StatusApply => {
            ("PATCH", below("status"), "application/apply-patch+yaml", applied().to_string())
        }
        Verb::Finalize => ("PUT", below("finalize"), json, replaced().to_string()),
        Verb::StatusGet => ("GET", below("status"), json, String::new()),
        Verb::Get => ("GET", kind.object(name), json, String::new()),
        Verb::List => ("GET", alone(""), json, String::new()),
        Verb::Watch => ("GET", alone("&watch=1"), json, String::new()),
        Verb::Delete => ("DELETE", kind.object(name), json, options()),
        Verb::DeleteCollection => ("DELETE", alone(""), json, options()),
    }
}

/// Returns how the answer differs from the expected one. `name` is the name of the object.
fn fault(expected: &Answer, name: &str, status: u16, answer: &Value) -> Option<String> {
    match expected {
        _ if expected.code() != status => Some(format!("{status} {answer}, expected {}", expected.code())),
        Answer::Object { object, .. } => {
            let mut answer = answer.clone();
            let owned = owned(&answer);
            answer["$owned"] = owned;
            difference(object, &answer, "")
        }
        Answer::Whole { object, .. } => {
            let mut answer = answer.clone();
            // The server itself writes the status of a ServiceCIDR at some time after the creation.
            let is_examined = status == 200 && answer["kind"] == "ServiceCIDR";
            if let Some(members) = answer.as_object_mut().filter(|_| is_examined) {
                members.remove("status");
            }
            let Some(metadata) = answer["metadata"].as_object_mut() else {
                return Some("the answer has no metadata".to_owned());
            };
            metadata.remove("managedFields");
            let absent = ["uid", "resourceVersion", "creationTimestamp"]
                .into_iter()
                .filter(|key| metadata.remove(*key).is_none())
                .collect::<Vec<_>>();
            settle(&mut answer, name);
            let matches = absent.is_empty() && answer == *object;
            (!matches).then(|| format!("{answer} without {absent:?}, expected {object}"))
        }
        Answer::Refusal { reason, causes, .. } => {
            let causes_of = |answer: &Value| {
                let causes = answer["details"]["causes"].as_array().cloned().unwrap_or_default();
                let mut causes: Vec<String> = causes.iter().map(cause).collect();
                // Upstream repeats some causes: it checks metadata twice.
                causes.sort();
                causes.dedup();
                causes
            };
            let found = causes_of(answer);
            let matches = answer["kind"] == "Status" && answer["reason"] == **reason && found == *causes;
            (!matches).then(|| format!("{} {found:?}, expected {reason} {causes:?}", answer["reason"]))
        }
    }
}

/// Replaces what differs from run to run by words: the name of the object, and what the server has allocated.
fn settle(value: &mut Value, name: &str) {
    match value {
        Value::String(text) if text.as_str() == name => "NAME".clone_into(text),
        Value::Array(elements) => elements.iter_mut().for_each(|element| settle(element, name)),
        Value::Object(members) => {
            for (key, member) in members {
                let is_none = *member == json!("None") || *member == json!(["None"]);
                if ALLOCATED.contains(&key.as_str()) && !is_none {
                    *member = json!("ALLOCATED");
                } else {
                    settle(member, name);
                }
            }
        }
        _ => {}
    }
}

fn cause(cause: &Value) -> String {
    let reason = cause["reason"].as_str().unwrap_or_default();
    format!("{} {}", reason.trim_start_matches("FieldValue"), cause["field"].as_str().unwrap_or_default())
}

/// Returns the fields of each owner: `MANAGER OPERATION` or `MANAGER OPERATION SUBRESOURCE`.
fn owned(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owner = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let owner = format!("{} {} {}", text("manager"), text("operation"), text("subresource"));
        (owner.trim_end().to_owned(), entry["fieldsV1"].clone())
    };
    entries.iter().map(owner).collect::<serde_json::Map<_, _>>().into()
}

/// Returns the first place at which `got` lacks something of `expected`. A null means that the member is absent.
fn difference(expected: &Value, got: &Value, path: &str) -> Option<String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => expected.iter().find_map(|(name, expected)| {
            let path = format!("{path}.{name}");
            match got.get(name) {
                None if expected.is_null() => None,
                Some(got) if !expected.is_null() => difference(expected, got, &path),
                got => Some(format!("{path} is {}, expected {expected}", got.unwrap_or(&json!("absent")))),
            }
        }),
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            let pairs = expected.iter().zip(got).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (expected, got))| difference(expected, got, &format!("{path}[{index}]")))
        }
        (expected, got) => (expected != got).then(|| format!("{path} is {got}, expected {expected}")),
    }
}
