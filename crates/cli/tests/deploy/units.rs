//! The systemd units.

use std::process::Command;

use crate::files::{BINARY, path, read, run, tool};

/// The units, their programs with the options of the unit, and the same as arguments of the binary under test.
const UNITS: [(&str, &str, &str); 3] = [
    ("portolan-proxy", "/usr/bin/portolan-proxy", "proxy"),
    (
        "portolan-serve",
        "/usr/bin/portolan serve --write-proxy-kubeconfig /var/lib/portolan/proxy.conf",
        "serve --write-proxy-kubeconfig /var/lib/portolan/proxy.conf",
    ),
    ("portolan-up", "/usr/bin/portolan up", "up"),
];

/// Returns the value of `NAME=` in a unit's environment file, without its quotes.
fn options(unit: &str) -> String {
    let text = read(&format!("deploy/systemd/{unit}.default"));
    let name = format!("{}_OPTIONS=", unit.to_uppercase().replace('-', "_"));
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{unit}: no {name}")).trim_matches('"').to_owned()
}

#[test]
fn systemd_has_no_complaint() {
    let Some(_) = tool("systemd-analyze") else { return };
    let folder = tempfile::tempdir().unwrap();
    for (unit, ..) in UNITS {
        let text = read(&format!("deploy/systemd/{unit}.service"));
        let text = text.replace("/usr/bin/portolan-proxy", BINARY).replace("/usr/bin/portolan", BINARY);
        // The manual pages are not installed here.
        let lines = text.lines().filter(|line| !line.starts_with("Documentation=man:"));
        let file = folder.path().join(format!("{unit}.service"));
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.arg("verify").arg(&file);
        let output = command.output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        let own: Vec<&str> = complaints.lines().filter(|line| line.contains("portolan-")).collect();
        assert!(own.is_empty() && output.status.success(), "{unit}: {complaints}");
    }
}

#[test]
fn the_command_lines_exist() {
    for (unit, program, arguments) in UNITS {
        let text = read(&format!("deploy/systemd/{unit}.service"));
        let variable = format!("${}_OPTIONS", unit.to_uppercase().replace('-', "_"));
        assert!(text.contains(&format!("ExecStart={program} {variable}\n")), "{unit}");
        assert!(text.contains(&format!("EnvironmentFile=-/etc/default/{unit}\n")), "{unit}");
        let mut command = Command::new(BINARY);
        command.args(arguments.split(' ')).args(options(unit).split_whitespace()).arg("--help");
        run(command);
    }
}

/// A kubeconfig from before the start of the server would have the address of a server without options.
#[test]
fn the_server_writes_the_kubeconfig_that_the_agent_reads() {
    assert!(!read("deploy/systemd/portolan-serve.service").contains("ExecStartPre"));
    let written = UNITS[1].1.rsplit(' ').next().unwrap();
    assert!(options("portolan-proxy").contains(&format!("--kubeconfig {written}")), "{written}");
}

/// The user of the unit is not root, so without a mode the programs of iptables must not be chosen.
#[test]
fn the_agent_of_the_unit_chooses_nftables_where_the_configuration_names_no_mode() {
    let text = read("deploy/systemd/portolan-proxy.default");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("PORTOLAN_PROXY_OPTIONS=")).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.contains(" --default-mode=nftables")), "{text}");
}

/// Returns the lines of one section of a unit.
fn settings(unit: &str, section: &str) -> Vec<String> {
    let text = read(&format!("deploy/systemd/{unit}.service"));
    let of_section = text.lines().skip_while(|line| *line != format!("[{section}]")).skip(1);
    of_section.take_while(|line| !line.starts_with('[')).map(str::to_owned).collect()
}

/// At boot an address to listen on may come late. A unit that had a limit of restarts would give up before that.
#[test]
fn every_unit_waits_for_the_network_and_starts_again_without_a_limit() {
    for (unit, ..) in UNITS {
        for (section, setting) in [
            ("Unit", "Wants=network-online.target"),
            ("Unit", "After=network-online.target"),
            ("Unit", "StartLimitIntervalSec=0"),
            ("Service", "Restart=always"),
            ("Service", "RestartSec=1"),
        ] {
            let has = settings(unit, section).iter().any(|line| line == setting);
            assert!(has, "{unit}: no {setting} in [{section}]");
        }
    }
}

/// The userspace mode lets its connections go on for 22 s after a signal.
#[test]
fn the_agent_has_time_to_end() {
    for unit in ["portolan-proxy", "portolan-up"] {
        assert!(stop_timeout(unit) >= 25, "{unit}");
    }
}

/// Returns the seconds after which systemd kills what has not ended.
fn stop_timeout(unit: &str) -> u64 {
    let text = read(&format!("deploy/systemd/{unit}.service"));
    let seconds = text.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    seconds.parse().unwrap()
}

/// The server first goes on for the delay that the page shows. In `portolan up`, it does so when the agent has ended.
#[test]
fn the_server_has_time_to_end() {
    let page = read("docs/serve-security.md");
    let (_, rest) = page.split_once("`--shutdown-delay-duration ").unwrap();
    let delay: u64 = rest.split_once("s`").unwrap().0.parse().unwrap();
    for (unit, agent) in [("portolan-serve", 0), ("portolan-up", 22)] {
        assert!(stop_timeout(unit) > agent + delay + 5, "{unit}");
    }
}

/// The API server, the DNS server and the prober give up `CAP_NET_ADMIN` on their threads, by capset, which is in @privileged. In
/// the other units no thread calls it: the server has no capability, and the agent keeps its own.
#[test]
fn the_threads_of_up_can_give_up_the_capability() {
    let text = read("deploy/systemd/portolan-up.service");
    let filters: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).collect();
    let denied = filters.iter().rposition(|filter| filter.starts_with('~') && filter.contains("@privileged"));
    let allowed = filters.iter().rposition(|filter| filter.split(' ').any(|call| call == "capset"));
    assert!(denied.is_some() && allowed > denied, "{filters:?}");
}

#[test]
fn the_user_of_the_units_is_made() {
    let made = read("deploy/systemd/portolan.sysusers");
    assert!(made.lines().any(|line| line.starts_with("u portolan ")), "{made}");
    for (unit, ..) in UNITS {
        let text = read(&format!("deploy/systemd/{unit}.service"));
        assert!(text.lines().any(|line| line == "User=portolan"), "{unit}");
    }
    assert!(path("deploy/systemd").is_dir());
}
