//! `--keep`: the cluster stays up, with instructions to enter it. On a terminal, requests are sent continuously.

use std::process;
use std::thread;
use std::time::Duration;

use super::cluster::{API_SERVER, Cluster};
use super::objects::{DNS, Frontend, WEB};
use super::requests::{self, Path, Sender};
use super::screen::Screen;

const REFRESH: Duration = Duration::from_secs(1);
const REQUESTS: u32 = 20;
const WEB_SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-ipv4";

/// Prints the instructions and waits until Ctrl-C ends the process, and with it the cluster.
pub(super) fn until_interrupted(screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    hints(screen, cluster)?;
    let paths = [
        Path::new(Sender::Pod, &WEB, Frontend::ClusterIp),
        Path::new(Sender::Client, &WEB, Frontend::LoadBalancerIp),
        Path::new(Sender::Client, &DNS, Frontend::NodePort),
        Path::new(Sender::Pod, &WEB, Frontend::ClusterIp).ipv6(),
    ];
    let mut lines = 0;
    while screen.is_live() {
        let rows = requests::send_some(cluster, &paths, &[], REQUESTS)?;
        if lines > 0 {
            screen.back(lines)?;
        }
        lines = screen.rows_now(&rows)?;
        thread::sleep(REFRESH);
    }
    loop {
        thread::park();
    }
}

fn hints(screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    screen.heading("Everything stays up until Ctrl-C. From another terminal:")?;
    let user = if in_own_user_namespace() {
        format!("--user --preserve-credentials --target {} ", process::id())
    } else {
        String::new()
    };
    let enter = |sender: Sender| format!("nsenter {user}--net={}", sender.namespace(cluster).path());
    let (node, client) = (enter(Sender::Node), enter(Sender::Client));
    let web = WEB.at(Frontend::LoadBalancerIp, portolan_testkit::Family::Ipv4);
    for (what, command) in [
        ("a shell on the node", format!("{node} bash")),
        ("a shell outside", format!("{client} bash")),
        ("the kernel's table", format!("{node} nft list table ip portolan")),
        ("the Services", format!("{node} curl -s http://{API_SERVER}/api/v1/services")),
        ("metrics of the proxy", format!("{node} curl -s http://127.0.0.1:10249/metrics")),
        (
            "a request",
            format!("{client} bash -c 'exec 3<>/dev/tcp/{}/{}; head -1 <&3'", web.ip(), web.port()),
        ),
        ("web without endpoints", format!("{node} curl -s -X DELETE http://{API_SERVER}{WEB_SLICE}")),
    ] {
        screen.line(&format_args!("  {what:<21} {command}"))?;
    }
    if screen.is_live() {
        screen.heading(&format!("{REQUESTS} requests each second:"))?;
    }
    Ok(())
}

fn in_own_user_namespace() -> bool {
    std::env::var_os(super::permission::MARK).is_some()
}
