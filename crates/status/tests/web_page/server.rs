//! A server that answers as the agent does, with 50,000 Services that exist nowhere else.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use portolan_status::{
    Agent, AgentState, Candidate, Choice, Conntrack, Drift, Endpoint, Family, Frontend, Health, Moment,
    Objects, Problem, RecordedEvent, Service, ServicePage, ServicePort, ServiceRate, ServiceRates, Sync,
    Totals, VERSION, Watch, What, page,
};

/// How many Services there are.
pub(crate) const SERVICES: usize = 50_000;
/// A text that is an element if it is taken for HTML, and a name of a port otherwise.
pub(crate) const HOSTILE: &str = "<img src=x onerror=hacked=1>\"'><script>hacked=1</script><b>bold</b>";

/// How often the state was asked for. The totals grow with it.
static STATES: AtomicU32 = AtomicU32::new(0);

/// The server. It ends with the process.
pub(crate) struct Server {
    pub(crate) address: String,
    /// Requests for Services.
    pub(crate) asked: Arc<AtomicUsize>,
    /// The highest limit of these requests.
    pub(crate) limit: Arc<AtomicUsize>,
    /// While it is set, every request for a document fails.
    pub(crate) fails: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/debug/portolan/", listener.local_addr().unwrap());
        let [asked, limit] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let fails = Arc::new(AtomicBool::new(false));
        let (counts, highest, failing) = (Arc::clone(&asked), Arc::clone(&limit), Arc::clone(&fails));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (counts, highest, failing) =
                    (Arc::clone(&counts), Arc::clone(&highest), Arc::clone(&failing));
                std::thread::spawn(move || answer(stream, &counts, &highest, &failing));
            }
        });
        Self { address, asked, limit, fails }
    }
}

/// Answers one request and closes the connection.
fn answer(
    mut stream: TcpStream,
    asked: &AtomicUsize,
    highest: &AtomicUsize,
    fails: &AtomicBool,
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.strip_prefix("/debug/portolan/")?.to_owned();
    lines.find(String::is_empty)?;
    let (name, query) = path.split_once('?').unwrap_or((&path, ""));
    let parameter = |wanted: &str| {
        let parts = query.split('&').filter_map(|part| part.split_once('='));
        let value = parts.into_iter().find_map(|(name, value)| (name == wanted).then_some(value));
        value.map(|value| value.replace("%2F", "/"))
    };
    let (status, kind, body) = match name {
        _ if !name.is_empty() && fails.load(Ordering::SeqCst) => {
            ("503 Busy", "text/plain", "ask again".into())
        }
        "" => ("200 OK", "text/html; charset=utf-8", page::HTML.to_owned()),
        "state" => (
            "200 OK",
            "application/json",
            serde_json::to_string(&state(STATES.fetch_add(1, Ordering::SeqCst))).ok()?,
        ),
        "rates" => ("200 OK", "application/json", serde_json::to_string(&rates()).ok()?),
        "services" => {
            asked.fetch_add(1, Ordering::SeqCst);
            let limit = parameter("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
            highest.fetch_max(limit, Ordering::SeqCst);
            let page = match parameter("service") {
                Some(service) => one(&service),
                None => some(parameter("search").as_deref(), parameter("after").as_deref(), limit),
            };
            ("200 OK", "application/json", serde_json::to_string(&page).ok()?)
        }
        _ => ("404 Not Found", "text/plain", String::new()),
    };
    let policy = page::POLICY;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Security-Policy: {policy}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()
}

fn rates() -> ServiceRates {
    let services = [("cart", 184.4), ("web-00007", 9.26), ("a-hostile", 0.2)];
    let service = |(name, per_second): (&str, f64)| ServiceRate {
        namespace: "shop".into(),
        name: name.into(),
        per_second,
    };
    ServiceRates {
        version: VERSION,
        over_seconds: Some(5.0),
        per_second: Some(193.86),
        active: 3,
        services: services.map(service).into(),
        ..ServiceRates::default()
    }
}

fn moment(age_seconds: f64) -> Moment {
    Moment { at: "2026-03-01T10:00:00Z".into(), age_seconds }
}

fn state(turn: u32) -> AgentState {
    AgentState {
        version: VERSION,
        agent: Agent {
            version: "v1.36.2+portolan-0.1.0".into(),
            node: "node1".into(),
            pid: 4711,
            started: moment(7_400.0),
        },
        in_sync: true,
        problems: vec![Problem {
            code: "drift".into(),
            text: "IPv4: another program changes the rules; repaired 1 times, last 40s ago".into(),
        }],
        mode: "nftables".into(),
        health: Health { healthy: true, ready: true, node_eligible: true, waiting_for: Vec::new() },
        objects: Objects { services: SERVICES, endpoint_slices: SERVICES, ..Objects::default() },
        engine_answered: true,
        families: ["IPv4", "IPv6"].map(|name| family(name, turn)).into(),
        watches: ["services", "endpointslices", "nodes", "servicecidrs"]
            .map(|resource| Watch { resource: resource.into(), age_seconds: Some(2.0), failure: None })
            .into(),
        conntrack: Some(Conntrack { entries: 9_400 + u64::from(turn * 37 % 90), max: 131_072 }),
        ..AgentState::default()
    }
}

fn family(name: &str, turn: u32) -> Family {
    let sync = |number: u32| {
        let slow = 10_f64.powf(f64::from(number * 7 % 13) / 10.0);
        Sync {
            ended: moment(5.0 + f64::from(number) * 21.0),
            mode: "nftables".into(),
            step: "commit".into(),
            changed: 5,
            examples: vec!["default/web:http".into(), "default/dns".into(), "shop/cart".into()],
            elements: 12,
            duration_seconds: 0.0006 * slow,
            kernel_seconds: 0.0003 * slow,
            ..Sync::default()
        }
    };
    let failure = Sync { error: Some(format!("iptables-restore: exit status 4 {HOSTILE}")), ..sync(20) };
    let events = vec![
        RecordedEvent::new(What::Repaired, moment(40.0), 1),
        RecordedEvent::new(What::Failed("iptables-restore: exit status 4"), moment(430.0), 3),
        RecordedEvent::new(What::Compared("start"), moment(7_400.0), 1),
    ];
    let is_first = name == "IPv4";
    Family {
        family: name.into(),
        mode: "nftables".into(),
        place: "nftables".into(),
        sync: "inSync".into(),
        since: Some(moment(200.0)),
        services: SERVICES,
        service_ports: SERVICES,
        frontends: 2 * SERVICES,
        endpoints: 3 * SERVICES,
        cluster_endpoints: 3 * SERVICES,
        local_endpoints: 900,
        ports_without_endpoints: usize::from(is_first),
        syncs: (0..59).map(sync).collect(),
        failures: if is_first { vec![failure] } else { Vec::new() },
        events: if is_first { events } else { Vec::new() },
        totals: Totals {
            syncs: 59 + u64::from(turn),
            failures: is_first.into(),
            changed: 50_295 + 5 * u64::from(turn),
        },
        drift: Drift {
            noticed: 1,
            repaired: u64::from(is_first),
            last: Some(moment(40.0)),
            last_repaired: is_first.then(|| moment(40.0)),
        },
        ..Family::default()
    }
}

/// The names in their order. The first Service is hostile.
fn name(number: usize) -> String {
    match number {
        0 => "a-hostile".to_owned(),
        1 => "cart".to_owned(),
        _ => format!("web-{number:05}"),
    }
}

fn service(number: usize) -> Service {
    let endpoint = |last: usize| Endpoint {
        address: format!("10.244.1.{last}:8080"),
        cluster: true,
        ..Endpoint::default()
    };
    let port = ServicePort {
        family: "IPv4".into(),
        name: if number == 0 { HOSTILE.into() } else { "http".into() },
        protocol: "TCP".into(),
        frontends: vec![frontend("clusterIP", Some(&format!("10.96.{}.{}", number / 250, number % 250)), 80)],
        internal_traffic_policy: "Cluster".into(),
        external_traffic_policy: "Cluster".into(),
        has_endpoints: number % 7 != 3,
        endpoints: if number % 7 == 3 { Vec::new() } else { (10..12 + number % 3).map(endpoint).collect() },
        refused: (number == 0).then(|| HOSTILE.into()),
        ..ServicePort::default()
    };
    Service { namespace: "shop".into(), name: name(number), ports: vec![port], ..Service::default() }
}

fn frontend(kind: &str, address: Option<&str>, port: u16) -> Frontend {
    Frontend { kind: kind.into(), address: address.map(str::to_owned), port }
}

/// Returns a page of Services: at most as many as asked for, among the next 20,000.
fn some(search: Option<&str>, after: Option<&str>, limit: usize) -> ServicePage {
    let number = |name: &str| match name {
        "shop/a-hostile" => 0,
        "shop/cart" => 1,
        name => name.trim_start_matches("shop/web-").parse().unwrap(),
    };
    let first = after.map_or(0, |after| number(after) + 1);
    let mut page = ServicePage { version: VERSION, ..ServicePage::default() };
    for number in first..SERVICES {
        if page.services.len() == limit || number == first + 20_000 {
            page.next = Some(format!("shop/{}", name(number - 1)));
            break;
        }
        if search.is_none_or(|search| name(number).contains(search)) {
            page.services.push(service(number));
        }
    }
    page
}

/// Returns the page of one Service.
fn one(key: &str) -> ServicePage {
    let found = (0..SERVICES).find(|&number| format!("shop/{}", name(number)) == key);
    let services = found.map(explained).into_iter().collect();
    ServicePage { version: VERSION, services, ..ServicePage::default() }
}

fn explained(number: usize) -> Service {
    let mut service = service(number);
    let used =
        |code: &str, text: &str| Choice { used: true, code: code.into(), text: format!("is used: {text}") };
    let out = |code: &str, text: &str| Choice {
        used: false,
        code: code.into(),
        text: format!("is left out: {text}"),
    };
    let ready = || used("endpoint-ready", "it is ready");
    let away = || out("endpoint-on-other-node", "it is on another node");
    let slice = if number == 0 { HOSTILE } else { "web-x7k2p" };
    let candidate = |address: &str, on_this_node, cluster, local| Candidate {
        address: if number == 0 { HOSTILE.into() } else { address.into() },
        slice: slice.into(),
        on_this_node,
        cluster,
        local,
    };
    let port = &mut service.ports[0];
    port.candidates = Some(vec![
        candidate("10.244.1.10:8080", true, ready(), ready()),
        candidate("10.244.2.11:8080", false, ready(), away()),
        candidate("10.244.2.12:8080", false, out("endpoint-not-ready", "it is not ready"), away()),
    ]);
    if number == 1 {
        service.health_check_node_port = Some(31_000);
        port.frontends.push(frontend("loadBalancerIP", Some("192.0.2.7"), 80));
        port.frontends.push(frontend("nodePort", None, 30_080));
        port.external_traffic_policy = "Local".into();
        port.session_affinity_seconds = Some(10_800);
        port.source_ranges = vec!["203.0.113.0/24".into()];
        let six = ServicePort {
            family: "IPv6".into(),
            frontends: vec![frontend("clusterIP", Some("fd00:10:96::aaaa:bbbb:1234"), 80)],
            internal_traffic_policy: "Local".into(),
            external_traffic_policy: "Cluster".into(),
            session_affinity_seconds: None,
            source_ranges: Vec::new(),
            has_endpoints: true,
            endpoints: Vec::new(),
            candidates: Some(vec![Candidate {
                address: "[fd00:10:244::2:11]:8080".into(),
                slice: "cart-v6-9b7d".into(),
                on_this_node: false,
                cluster: out(Candidate::NO_TRAFFIC, "no traffic policy uses this list of endpoints"),
                local: away(),
            }]),
            ..service.ports[0].clone()
        };
        service.ports.push(six);
    }
    service
}
