use std::fmt::Write as _;
use std::fs;

use portolan_testkit::{HttpClient, PortolanProcess};

use crate::site::{ADDRESS, PATIENCE, Site};

const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Maximum memory of one request, as a multiple of its body.
const TIMES: usize = 8;
/// The same for a patch. The server holds the patch, the stored object, the result, and copies of what it replaces.
const TIMES_OF_A_PATCH: usize = 14;
/// Memory that the `copy` operations of a patch may take besides.
const COPIED: u64 = 8 << 20;
/// Copies of an endpoint of which the server makes as many, but not twice as many.
const COPIES: usize = 400;
/// Memory that any request may take, even a short one.
const FLOOR: u64 = 14 << 20;
/// Length of the longest body that the server reads.
const BODY: usize = 3 << 20;
/// Additional memory of the allocator and the threads.
const PAGES: u64 = 256 << 10;

/// Returns the maximum memory of one request: the process's high-water mark minus its memory before.
fn taken(server: &PortolanProcess, request: impl FnOnce()) -> u64 {
    // 5 resets the mark to the current memory (`proc_pid_clear_refs(5)`).
    fs::write(format!("/proc/{}/clear_refs", server.id()), "5").unwrap();
    let before = server.resident().unwrap();
    request();
    server.resident_high_water().unwrap().saturating_sub(before)
}

/// Returns the memory that a request may take, if it may take this many times the memory of its body.
fn most(body: &str, times: usize) -> u64 {
    FLOOR.max((body.len() * times) as u64) + PAGES
}

/// Returns `head`, up to `count` numbered copies of `part` that fit into a body, and `tail`.
fn many(head: &str, part: impl Fn(usize) -> String, tail: &str, count: usize) -> String {
    let mut text = head.to_owned();
    for number in 0..count {
        let part = part(number);
        if text.len() + part.len() + tail.len() + 1 > BODY {
            break;
        }
        if number > 0 {
            text.push(',');
        }
        let _ = write!(text, "{part}");
    }
    text + tail
}

/// Returns bodies of about 3 MiB, each with a different dense content, and some slightly below the limits of the
/// decoder.
fn bodies() -> Vec<(&'static str, String)> {
    let all = usize::MAX;
    let service = |metadata: &str| format!("{{\"metadata\":{{\"name\":\"x\",{metadata}");
    vec![
        ("200,000 labels", many(&service("\"labels\":{"), |n| format!("\"k{n}\":\"v\""), "}}}", 200_000)),
        ("120,000 labels", many(&service("\"labels\":{"), |n| format!("\"k{n}\":\"v\""), "}}}", 120_000)),
        (
            "30,000 ports",
            many(
                "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"ports\":[",
                |_| "{\"port\":1}".to_owned(),
                "]}}",
                30_000,
            ),
        ),
        (
            "7,500 ports",
            many(
                "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"ports\":[",
                |_| "{\"port\":1}".to_owned(),
                "]}}",
                7_500,
            ),
        ),
        ("bad labels", many(&service("\"labels\":{"), |n| format!("\"-{n}\":\"-\""), "}}}", all)),
        ("annotations", many(&service("\"annotations\":{"), |n| format!("\"k{n}\":\"\""), "}}}", all)),
        ("finalizers", many(&service("\"finalizers\":["), |n| format!("\"-{n}\""), "]}}", all)),
        ("owners", many(&service("\"ownerReferences\":["), |_| "{}".to_owned(), "]}}", all)),
        ("unknown fields", many("{\"metadata\":{\"name\":\"x\"},", |n| format!("\"k{n}\":0"), "}", all)),
        ("the same field", many("{\"metadata\":{\"name\":\"x\"},", |_| "\"k\":0".to_owned(), "}", all)),
        (
            "ports",
            many(
                "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"ports\":[",
                |_| "{\"port\":1}".to_owned(),
                "]}}",
                all,
            ),
        ),
        (
            "numbers",
            many("{\"metadata\":{\"name\":\"x\"},\"spec\":{\"ports\":[", |_| "0".to_owned(), "]}}", all),
        ),
        (
            "texts",
            many(
                "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"externalIPs\":[",
                |_| "\"\"".to_owned(),
                "]}}",
                all,
            ),
        ),
        ("a long name", format!("{{\"metadata\":{{\"name\":\"{}\"}}}}", "x".repeat(BODY - 100))),
        (
            "a long key",
            format!("{}\"labels\":{{\"{}\":\"\"}}}}}}", service(""), "x".repeat(BODY - 100))
                .replace(",\"labels", "\"labels")
                .replace("\"x\"\"labels", "\"x\",\"labels"),
        ),
        (
            "a long annotation",
            format!("{}\"annotations\":{{\"a\":\"{}\"}}}}}}", service(""), "x".repeat(BODY - 200))
                .replace("\"x\",\"annotations", "\"x\",\"annotations"),
        ),
        ("depth", "[".repeat(BODY)),
        ("nothing", " ".repeat(BODY)),
    ]
}

#[test]
fn one_request_takes_at_most_what_the_book_says() {
    let mut wrong = Vec::new();
    for (what, body) in bodies() {
        assert!(body.len() <= BODY, "{what}: {}", body.len());
        for (method, path) in [
            ("POST", format!("{SERVICES}?fieldValidation=Strict")),
            ("POST", SERVICES.to_owned()),
            ("PUT", format!("{SERVICES}/small")),
        ] {
            // Memory that an earlier request freed would hide the growth.
            let site = Site::new();
            let mut server = site.serve(&[], &["--in-memory"]);
            site.ready(&mut server);
            let small = "{\"metadata\":{\"name\":\"small\"},\"spec\":{\"ports\":[{\"port\":80}]}}";
            assert_eq!(site.ask("POST", SERVICES, small).code, 201);
            let mut code = 0;
            let taken = taken(&server, || code = site.ask(method, &path, &body).code);
            let times = taken as f64 / body.len() as f64;
            println!("{what}, {method} of {} bytes: {code}, {taken} bytes, {times:.1} times", body.len());
            assert!((400..500).contains(&code), "{what}: {code}");
            if taken > most(&body, TIMES) {
                wrong.push(format!("{what}, {method}: {times:.1}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns an EndpointSlice with the maximum number of valid endpoints, each with this many addresses, and hints for
/// this many zones and nodes.
fn slice(addresses: usize, hints: usize) -> String {
    let zones: Vec<String> = (0..hints).map(|zone| format!("{{\"name\":\"z{zone}\"}}")).collect();
    let zones = zones.join(",");
    let endpoint = |n: usize| {
        let addresses: Vec<String> =
            (0..addresses).map(|a| format!("\"10.{a}.{}.{}\"", n / 250, n % 250 + 1)).collect();
        format!(
            "{{\"addresses\":[{}],\"nodeName\":\"node-{n}\",\"zone\":\"a\",\
             \"targetRef\":{{\"kind\":\"Pod\",\"namespace\":\"default\",\"name\":\"web-{n}\",\"uid\":\"{n}\"}},\
             \"hints\":{{\"forZones\":[{zones}],\"forNodes\":[{zones}]}},\
             \"conditions\":{{\"ready\":true,\"serving\":true,\"terminating\":false}}}}",
            addresses.join(",")
        )
    };
    let head = "{\"metadata\":{\"name\":\"s\"},\"addressType\":\"IPv4\",\"endpoints\":[";
    many(head, endpoint, "],\"ports\":[{\"port\":1}]}", 1000)
}

/// Returns Endpoints with this many addresses, each with a target.
fn endpoints(count: usize) -> String {
    let address = |n: usize| {
        format!(
            "{{\"ip\":\"10.{}.{}.{}\",\"targetRef\":{{\"kind\":\"Pod\",\"namespace\":\"default\",\"name\":\"web-{n}\"}}}}",
            n / 62_500,
            n / 250 % 250,
            n % 250 + 1
        )
    };
    let head = "{\"metadata\":{\"name\":\"e\"},\"subsets\":[{\"addresses\":[";
    many(head, address, "],\"ports\":[{\"port\":1}]}]}", count)
}

#[test]
fn requests_on_stored_objects_stay_within_the_same_limit() {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let all_endpoints = "/api/v1/namespaces/default/endpoints";
    let annotation = format!(
        "{{\"metadata\":{{\"name\":\"a\",\"annotations\":{{\"a\":\"{}\"}}}},\"spec\":{{\"ports\":[{{\"port\":1}}]}}}}",
        "x".repeat(250_000)
    );
    let labels = |count: usize| {
        let head = "{\"metadata\":{\"name\":\"l\",\"labels\":{";
        many(head, |n| format!("\"k{n}\":\"v\""), "}},\"spec\":{\"ports\":[{\"port\":1}]}}", count)
    };
    let ports = many(
        "{\"metadata\":{\"name\":\"p\"},\"spec\":{\"ports\":[",
        |n| format!("{{\"name\":\"p{n}\",\"port\":{}}}", n + 1),
        "]}}",
        5_000,
    );
    let mut wrong = Vec::new();
    for (what, path, name, body) in [
        ("a slice", slices, "s", slice(1, 1)),
        ("a slice with all hints", slices, "s", slice(1, 8)),
        ("the longest slice", slices, "s", slice(78, 8)),
        ("Endpoints", all_endpoints, "e", endpoints(10_000)),
        ("the longest Endpoints", all_endpoints, "e", endpoints(16_000)),
        ("a long annotation", SERVICES, "a", annotation),
        ("many labels", SERVICES, "l", labels(16_000)),
        ("very many labels", SERVICES, "l", labels(100_000)),
        ("many ports", SERVICES, "p", ports),
    ] {
        let changed = body.replacen("\"metadata\":{", "\"metadata\":{\"annotations\":{\"b\":\"\"},", 1);
        let changed = if what == "a long annotation" { body.replace("xx\"", "yy\"") } else { changed };
        let (site, folder) = (Site::new(), tempfile::tempdir().unwrap());
        let path_of = format!("{path}/{name}");
        for (method, path, body, expected) in [("POST", path, &body, 201), ("PUT", &path_of, &changed, 200)] {
            // Memory that an earlier request freed would hide the growth.
            let mut server = site.serve(&[], &["--data-dir", folder.path().to_str().unwrap()]);
            site.ready(&mut server);
            let mut code = 0;
            let taken = taken(&server, || code = site.ask(method, path, body).code);
            let times = taken as f64 / body.len() as f64;
            println!("{what}, {method} of {} bytes: {code}, {taken} bytes, {times:.1} times", body.len());
            assert_eq!(code, expected, "{what}");
            if taken > most(body, TIMES) {
                wrong.push(format!("{what}, {method}: {times:.1}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Returns patches of a stored slice with 1,000 endpoints: what they change, their media type, and their body.
fn patches(stored: &str) -> [(&'static str, &'static str, String); 9] {
    let annotation = "{\"metadata\":{\"annotations\":{\"b\":\"\"}}}".to_owned();
    let whole = stored.replacen("\"metadata\":{", "\"metadata\":{\"annotations\":{\"b\":\"\"},", 1);
    let kind = "{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",";
    let configuration = whole.replacen('{', kind, 1);
    let added = "[{\"op\":\"add\",\"path\":\"/metadata/annotations\",\"value\":{\"b\":\"\"}}]".to_owned();
    let node_name = |n: usize| {
        format!("{{\"op\":\"replace\",\"path\":\"/endpoints/{n}/nodeName\",\"value\":\"other-{n}\"}}")
    };
    let replaced = format!("[{{\"op\":\"replace\",\"path\":\"\",\"value\":{configuration}}}]");
    let applied =
        annotation.replacen('{', kind, 1).replacen("\"annotations\"", "\"name\":\"s\",\"annotations\"", 1);
    [
        ("an annotation", MERGE, annotation.clone()),
        ("everything", MERGE, whole.clone()),
        ("an annotation", STRATEGIC, annotation),
        ("everything", STRATEGIC, whole),
        ("an annotation", JSON, added),
        ("each endpoint", JSON, many("[", node_name, "]", 1000)),
        ("everything", JSON, replaced),
        ("an annotation", APPLY, applied),
        ("everything", APPLY, configuration),
    ]
}

/// Sends a patch. Returns the status.
fn patch(site: &Site, path: &str, media_type: &str, body: &str) -> u16 {
    let query = if media_type == APPLY { "?fieldManager=m&force=true" } else { "" };
    let (path, headers) = (format!("{path}{query}"), [("content-type", media_type)]);
    let mut client = HttpClient::new(ADDRESS.parse().unwrap(), PATIENCE);
    let answer = site.namespace.run(|| client.request("PATCH", &path, &headers, body.as_bytes()));
    answer.unwrap().unwrap().status
}

/// Sends a patch of a stored slice to a server that has answered no other request. Returns the status and the memory.
fn patched(stored: &str, media_type: &str, body: &str) -> (u16, u64) {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let (site, folder) = (Site::new(), tempfile::tempdir().unwrap());
    let arguments = ["--data-dir", folder.path().to_str().unwrap()];
    let mut server = site.serve(&[], &arguments);
    site.ready(&mut server);
    assert_eq!(site.ask("POST", slices, stored).code, 201);
    drop(server);
    // Memory that an earlier request freed would hide the growth.
    let mut server = site.serve(&[], &arguments);
    site.ready(&mut server);
    let mut code = 0;
    let taken = taken(&server, || code = patch(&site, &format!("{slices}/s"), media_type, body));
    (code, taken)
}

#[test]
fn patches_of_the_longest_slice_take_at_most_what_the_book_says() {
    let stored = slice(78, 8);
    let mut wrong = Vec::new();
    for (what, media_type, body) in patches(&stored) {
        let (code, taken) = patched(&stored, media_type, &body);
        let times = taken as f64 / body.len() as f64;
        println!("{what}, {media_type} of {} bytes: {code}, {taken} bytes, {times:.1} times", body.len());
        assert_eq!(code, 200, "{what}, {media_type}");
        if taken > most(&body, TIMES_OF_A_PATCH) {
            wrong.push(format!("{what}, {media_type}: {taken} bytes, {times:.1} times"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A slice may not have so many endpoints, which the server says once it has made them.
#[test]
fn a_patch_that_copies_takes_as_much_more_as_the_book_says() {
    let stored = slice(78, 8);
    let copy = |_| "{\"op\":\"copy\",\"from\":\"/endpoints/0\",\"path\":\"/endpoints/-\"}".to_owned();
    let of = |count| {
        let body = many("[", copy, "]", count);
        let (code, taken) = patched(&stored, JSON, &body);
        println!("{count} copies, {} bytes: {code}, {taken} bytes", body.len());
        assert!(taken <= most(&body, TIMES_OF_A_PATCH) + COPIED, "{count} copies: {taken} bytes");
        code
    };
    assert_eq!((of(COPIES), of(2 * COPIES)), (422, 413), "too many endpoints, and too much copied");
}
