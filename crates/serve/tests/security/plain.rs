//! Plain HTTP: needs no credentials, but refuses requests of pages in a browser.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;

use portolan_serve::{Collect, Config, MetricKind, Page, Server};

use crate::client::{Answer, DEADLINE, SERVICES, read_answer, service};

fn ask(server: &portolan_serve::RunningServer, method: &str, path: &str, lines: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\n{lines}content-length: {length}\r\n\r\n{body}").unwrap();
    read_answer(&mut BufReader::new(stream))
}

#[test]
fn pages_in_a_browser_are_kept_out() {
    let server = Server::start(Config::default()).unwrap();
    assert!(server.url().starts_with("http://"));
    let body = service("web");
    let evil = "host: localhost\r\norigin: http://evil.example\r\n";
    let renamed = "host: evil.example\r\n";
    for lines in [evil, renamed] {
        ask(&server, "POST", SERVICES, lines, &body).refused(403, "Forbidden");
        ask(&server, "GET", SERVICES, lines, "").refused(403, "Forbidden");
    }
    assert_eq!(ask(&server, "POST", SERVICES, "host: localhost\r\n", &body).code, 201);
    assert_eq!(ask(&server, "GET", "/readyz", renamed, "").body, "ok");
}

struct Answered;

impl Collect for Answered {
    fn collect(&self, page: &mut Page) {
        page.single("everything", MetricKind::Gauge, "The answer.", 42.0);
    }
}

#[test]
fn other_crates_add_metrics_and_checks() {
    let config = Config::default();
    config.metrics.register(Arc::new(Answered));
    config.checks.register("store", Arc::new(|| Err("lost".to_owned())));
    let server = Server::start(config).unwrap();
    let page = ask(&server, "GET", "/metrics", "host: localhost\r\n", "");
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(page.body.contains("\neverything 42\n"), "{}", page.body);
    let ready = ask(&server, "GET", "/readyz", "host: localhost\r\n", "");
    assert_eq!(ready.code, 503);
    assert!(ready.body.contains("[-]store failed: reason withheld\n"), "{}", ready.body);
    assert_eq!(ask(&server, "GET", "/livez", "host: localhost\r\n", "").code, 200);
}
