use portolan_testkit::eventually;

use crate::site::{Backing, PATIENCE, Site};

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[test]
fn a_server_is_not_ready_while_etcd_carries_out_no_writes() {
    let Some(site) = Site::start(Backing::Etcd(1), &[]) else { return };
    let ready = || site.ask(0, "GET", "/readyz", "").unwrap();
    let write = |name: &str| {
        let body =
            format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"spec\":{{\"ports\":[{{\"port\":80}}]}}}}");
        site.ask(0, "POST", SERVICES, &body).unwrap().0
    };
    assert_eq!((write("before"), ready().0), (201, 200));
    site.kill_etcd();
    assert!(write("during") >= 500);
    let (code, text) = ready();
    assert!(code == 503 && text.contains("[-]store"), "{code} {text}");
    // The server is alive and serves reads.
    assert_eq!(site.ask(0, "GET", "/livez", "").unwrap().0, 200);
    site.crash_etcd();
    // No client writes meanwhile.
    eventually(PATIENCE, "a server that is ready", || ready().0 == 200).unwrap();
    assert_eq!(write("after"), 201);
}
