//! Describes the machine and the date, which identify the figures.

use std::fs;
use std::process::Command;

/// Returns processor, cores, memory, kernel, load and date, one line each.
pub(crate) fn describe() -> String {
    let system = rustix::system::uname();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    [
        ("processor", format!("{}, {cores} cores", value("/proc/cpuinfo", "model name"))),
        ("memory", value("/proc/meminfo", "MemTotal")),
        ("kernel", format!("{} {}", system.sysname().to_string_lossy(), release(&system))),
        ("date", date()),
        ("load at the start", load),
    ]
    .map(|(name, value)| format!("{name}: {value}"))
    .join("\n")
}

/// Returns the versions of nft and of iptables.
pub(crate) fn programs() -> String {
    ["nft", "iptables"].map(first_line).join(", ")
}

/// Returns the first line that a program prints about its version.
fn first_line(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().map_or_else(|| format!("{program} unknown"), str::to_owned)
}

/// Returns the version number of a kernel's release, without the suffix of a distribution or host.
fn release(system: &rustix::system::Uname) -> String {
    let release = system.release().to_string_lossy();
    release.split('-').next().unwrap_or_default().to_owned()
}

/// Returns the first value with this name in a file of `name : value` lines.
fn value(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name);
    found.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

/// Returns today's date, from the program `date`.
fn date() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
