use std::fs;

use super::*;

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const HASHSIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// A host with these files in a temporary folder.
fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for (path, content) in files {
        let file = folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
        fs::write(file, content).expect("a file");
    }
    let host = Host::below(folder.path());
    (folder, host)
}

#[test]
fn settings_that_differ_are_written_once() {
    let (_folder, host) = host(&[(FORWARD, "0\n")]);
    let wanted = [Wanted::exactly(FORWARD, 1)];
    assert_eq!(host.apply(&wanted).written, wanted);
    assert_eq!(host.read(FORWARD).as_deref(), Some("1"));
    let again = host.apply(&wanted);
    assert!(again.written.is_empty() && again.refused.is_empty(), "{again:?}");
}

#[test]
fn values_above_the_minimum_are_kept() {
    let (_folder, host) = host(&[(HASHSIZE, "65536\n")]);
    let at_least = |value| [Wanted { bound: Bound::AtLeast, ..Wanted::exactly(HASHSIZE, value) }];
    assert!(host.apply(&at_least(65_536)).written.is_empty());
    assert!(host.apply(&at_least(1)).written.is_empty());
    assert_eq!(host.apply(&at_least(65_537)).written.len(), 1);
    assert_eq!(host.read(HASHSIZE).as_deref(), Some("65537"));
}

#[test]
fn an_unwritable_setting_names_its_command_and_does_not_stop_the_rest() {
    let (_folder, host) = host(&[(FORWARD, "0")]);
    let missing = "/proc/sys/net/netfilter/nf_conntrack_max";
    let outcome = host.apply(&[Wanted::exactly(missing, 5), Wanted::exactly(FORWARD, 1)]);
    assert_eq!(outcome.written.len(), 1);
    let text: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    insta::assert_debug_snapshot!(text, @r#"
    [
        "/proc/sys/net/netfilter/nf_conntrack_max: wanted 5, is not readable (No such file or directory (os error 2)); run `sysctl -w net.netfilter.nf_conntrack_max=5`",
    ]
    "#);
}

#[test]
fn files_outside_of_proc_sys_have_a_command() {
    let wanted = Wanted::exactly(HASHSIZE, 9);
    assert_eq!(wanted.command(), format!("echo 9 > {HASHSIZE}"));
}

#[test]
fn the_second_file_is_written_if_the_first_one_fails() {
    let (_folder, host) = host(&[(HASHSIZE, "1\n")]);
    let wanted = Wanted { instead: Some(HASHSIZE), ..Wanted::exactly(FORWARD, 5) };
    assert!(host.refusals(&[wanted]).is_empty());
    assert_eq!(host.read(HASHSIZE).as_deref(), Some("1"), "to ask changes nothing");
    assert_eq!(host.apply(&[wanted]).written, [wanted]);
    assert_eq!(host.read(HASHSIZE).as_deref(), Some("5"));
}

#[test]
fn refusals_are_found_without_a_write() {
    let (_folder, host) = host(&[(FORWARD, "0")]);
    let missing = Wanted::exactly("/proc/sys/net/netfilter/nf_conntrack_max", 5);
    let refused = host.refusals(&[missing, Wanted::exactly(FORWARD, 1)]);
    assert_eq!(refused.iter().map(|refused| refused.wanted).collect::<Vec<_>>(), [missing]);
    assert_eq!(host.read(FORWARD).as_deref(), Some("0"));
}

#[test]
fn what_is_pending_is_what_is_written() {
    const MINE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let (_folder, host) = host(&[(FORWARD, "0\n"), (MINE, "90\n"), (HASHSIZE, "no number\n")]);
    let missing = Wanted::exactly("/proc/sys/net/netfilter/nf_conntrack_max", 5);
    let wanted =
        [Wanted::exactly(FORWARD, 1), Wanted::exactly(MINE, 90), Wanted::exactly(HASHSIZE, 1), missing];
    assert_eq!(host.pending(&wanted), [(Wanted::exactly(FORWARD, 1), 0)]);
    host.apply(&wanted);
    assert!(host.pending(&wanted).is_empty());
    assert!(host.has(&Wanted::exactly(FORWARD, 1)) && !host.has(&Wanted::exactly(FORWARD, 0)));
    assert!(!host.has(&missing));
}
