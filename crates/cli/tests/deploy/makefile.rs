//! The Makefile: every target installs what it needs itself.

use std::process::Command;

use crate::files::{path, run};

/// Returns the commands that `make -n` prints.
fn plan(target: &str) -> String {
    let mut command = Command::new("make");
    command
        .args(["--dry-run", target])
        .arg("-C")
        .arg(path(""))
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL");
    run(command)
}

#[test]
fn every_target_installs_what_it_needs() {
    let needs = [
        ("demo", &["iproute2", "nftables"][..]),
        (
            "test",
            &[
                "conntrack",
                "iproute2",
                "ipset",
                "musl-tools",
                "nftables",
                "python3-pip",
                "strace",
                "systemd",
                "tcpdump",
                "unzip",
                "cpio",
                "ipvsadm",
            ],
        ),
        ("chaos", &["iproute2", "nftables", "strace"]),
        ("test-nftables", &["conntrack", "iproute2", "nftables"]),
        ("test-iptables", &["conntrack", "iproute2", "iptables", "nftables"]),
        ("test-ipvs", &["conntrack", "iproute2", "cpio", "ipset", "ipvsadm"]),
        ("test-userspace", &["conntrack", "iproute2", "iptables", "nftables"]),
        ("vm-test", &["nftables", "cpio", "ipvsadm"]),
        ("deny", &["python3-pip", "unzip"]),
        ("bench", &["nftables", "musl-tools"]),
        ("bench-host", &["iproute2", "nftables"]),
        ("bench-peers", &["conntrack", "iproute2", "iptables", "nftables"]),
        ("bench-scale", &["conntrack", "iproute2", "nftables"]),
        ("takeover-test", &["conntrack", "iproute2", "iptables", "nftables"]),
        ("static", &["musl-tools"]),
        ("image", &["musl-tools", "libcap2-bin"]),
        ("image-small", &["musl-tools", "libcap2-bin"]),
        ("image-up", &["musl-tools", "libcap2-bin"]),
        ("release", &["musl-tools", "libcap2-bin", "gcc-aarch64-linux-gnu"]),
        ("aarch64-test", &["cpio", "gcc-aarch64-linux-gnu", "qemu-user-static"]),
    ];
    for (target, packages) in needs {
        let plan = plan(target);
        let lists = plan.lines().filter(|line| line.contains("for package in"));
        let installed: Vec<&str> = lists.flat_map(|line| line.split([' ', ';'])).collect();
        for package in packages {
            assert!(installed.contains(package), "make {target} does not install {package}: {installed:?}");
        }
    }
}
