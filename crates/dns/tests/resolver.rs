//! The C library's resolver asks the server: `getent` with a resolv.conf of its own in a mount namespace. Needs root, for
//! the mount and for port 53 of an address of the loopback device.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, RwLock, mpsc};
use std::thread;

use portolan_dns::server::Sockets;
use portolan_dns::{Limits, Server, Service, Settings, Slice, Zone};
use serde_json::json;

/// Number of attempts to find an address that no other test uses.
const TRIES: usize = 50;
/// More endpoints than fit into a datagram, so that the resolver comes back over TCP.
const MANY: usize = 120;

fn zone() -> Zone {
    let mut zone = Zone::new(Settings::new("cluster.local").unwrap(), 1);
    zone.set_in_sync(true);
    for (name, spec) in [
        ("web", json!({"clusterIPs": ["10.96.0.1", "fd00:96::1"]})),
        ("db", json!({"clusterIP": "None"})),
        ("alias", json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"})),
    ] {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        zone.set_service(Service::try_from(&object).unwrap());
    }
    let endpoints: Vec<_> = (0..MANY).map(|last| json!({"addresses": [format!("10.1.0.{last}")]})).collect();
    let slice = json!({
        "metadata": {"name": "db-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"}},
        "endpoints": endpoints,
    });
    zone.set_slice(Slice::try_from(&slice).unwrap());
    zone
}

/// Starts the server at port 53 of some loopback address. It ends with the process.
fn start() -> Ipv4Addr {
    let server = Arc::new(Server::new(Arc::new(RwLock::new(zone())), None, Limits::default()));
    let (found, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..TRIES {
                let [a, b, c, _] = rand::random::<u32>().to_be_bytes();
                let address = Ipv4Addr::new(127, a, b, c.clamp(1, 254));
                if let Ok(sockets) = Sockets::bind(SocketAddr::from((address, 53))) {
                    found.send(address).unwrap();
                    return server.serve(sockets).await.unwrap();
                }
            }
        });
    });
    address
        .recv()
        .unwrap_or_else(|_| panic!("port 53 of no loopback address can be used: this test needs root"))
}

/// Returns the first words of getent's lines, or its exit code.
fn getent(folder: &Path, arguments: &[&str]) -> Result<BTreeSet<String>, Option<i32>> {
    let script = "mount --bind resolv.conf /etc/resolv.conf && mount --bind nsswitch.conf /etc/nsswitch.conf && exec getent \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "getent"]).args(arguments).current_dir(folder);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "this test needs root: {errors}");
    if !output.status.success() {
        return Err(output.status.code());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    Ok(text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect())
}

#[test]
fn the_c_librarys_resolver_finds_services() {
    let folder = tempfile::tempdir().unwrap();
    let address = start();
    // The resolver waits longer than any delay on a busy machine.
    let resolv_conf = format!(
        "nameserver {address}\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\n\
         options ndots:5 timeout:30 attempts:4\n"
    );
    std::fs::write(folder.path().join("resolv.conf"), resolv_conf).unwrap();
    std::fs::write(folder.path().join("nsswitch.conf"), "hosts: dns\n").unwrap();
    let ask = |arguments: &[&str]| getent(folder.path(), arguments);
    let set = |all: &[&str]| -> BTreeSet<String> { all.iter().map(|one| (*one).to_owned()).collect() };

    assert_eq!(ask(&["ahostsv4", "web"]), Ok(set(&["10.96.0.1"])));
    assert_eq!(ask(&["ahostsv6", "web.shop"]), Ok(set(&["fd00:96::1"])));
    assert_eq!(ask(&["ahostsv4", "alias.shop.svc.cluster.local"]), Ok(set(&["10.96.0.1"])));
    assert_eq!(ask(&["ahostsv4", "10-1-0-7.db"]), Ok(set(&["10.1.0.7"])));
    assert_eq!(ask(&["ahostsv4", "db"]).map(|all| all.len()), Ok(MANY));
    assert_eq!(ask(&["hosts", "10.96.0.1"]), Ok(set(&["10.96.0.1"])));
    // 2: the key does not exist.
    assert_eq!(ask(&["ahostsv4", "none"]), Err(Some(2)));
}
