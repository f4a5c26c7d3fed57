//! Rewrites the command line before it is parsed: accepts the spellings of kube-proxy that the parser does not know.

use std::ffi::OsString;
use std::path::Path;

use super::flags;

/// Under this name, both binaries are only the proxy.
const KUBE_PROXY: &str = "kube-proxy";
/// The subcommand that is then inserted.
const PROXY: &str = "proxy";
/// Under this name, kubectl finds `portolan` as a plugin: `kubectl portolan`.
const KUBECTL_PLUGIN: &str = "kubectl-portolan";
/// The subcommands that have the flags of the proxy.
const WITH_FLAGS: [&str; 4] = [PROXY, "explain", "plan", "check"];

/// Returns true if the program was called as `kube-proxy`.
pub fn is_kube_proxy(arguments: &[OsString]) -> bool {
    is_called(KUBE_PROXY, arguments)
}

/// Returns true if kubectl called the program, as its plugin `portolan`.
pub fn is_kubectl_plugin(arguments: &[OsString]) -> bool {
    is_called(KUBECTL_PLUGIN, arguments)
}

fn is_called(name: &str, arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|program| Path::new(program).file_name().is_some_and(|own| own == name))
}

/// Rewrites the command line of `portolan`. Inserts the subcommand `proxy` if the program was called as `kube-proxy`.
/// Rewrites the flags after a subcommand that has those of the proxy as `normalise_flags` does.
pub fn normalise(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let command =
        if is_kube_proxy(std::slice::from_ref(&program)) { Some(PROXY.into()) } else { arguments.next() };
    let has_flags = command.as_ref().is_some_and(|command| WITH_FLAGS.iter().any(|with| command == with));
    let mut normal: Vec<OsString> = std::iter::once(program).chain(command).collect();
    if has_flags {
        push_flags(&mut normal, arguments);
    } else {
        normal.extend(arguments);
    }
    normal
}

/// Rewrites the command line of a program that has the proxy's flags itself. Replaces underscores in the names of flags
/// by hyphens. Drops empty arguments that are not values, because kube-proxy tolerates them.
pub(crate) fn normalise_flags(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut normal: Vec<OsString> = arguments.next().into_iter().collect();
    push_flags(&mut normal, arguments);
    normal
}

fn push_flags(normal: &mut Vec<OsString>, arguments: impl Iterator<Item = OsString>) {
    let (mut is_value, mut is_over) = (false, false);
    for argument in arguments {
        is_over |= !is_value && argument == "--";
        if is_value || (is_over && !argument.is_empty()) {
            normal.push(argument);
            is_value = false;
        } else if !argument.is_empty() {
            let hyphenated = hyphenate(argument);
            is_value = takes_next(&hyphenated);
            normal.push(hyphenated);
        }
    }
}

/// `--cluster_cidr=a_b` becomes `--cluster-cidr=a_b`.
fn hyphenate(argument: OsString) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else { return argument };
    match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    }
}

/// Returns true if the argument after this one is its value, even if it starts with a hyphen.
fn takes_next(argument: &OsString) -> bool {
    let Some(argument) = argument.to_str() else { return false };
    let flag = argument.strip_prefix("--").and_then(flags::find);
    argument == "-v" || flag.is_some_and(|flag| !flag.kind.is_optional())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let table = [
            (
                "/usr/local/bin/kube-proxy --cluster_cidr=a_b",
                "/usr/local/bin/kube-proxy proxy --cluster-cidr=a_b",
            ),
            ("kube-proxy", "kube-proxy proxy"),
            ("kube-proxy proxy", "kube-proxy proxy proxy"),
            ("portolan proxy --bind_address ::1", "portolan proxy --bind-address ::1"),
            ("portolan proxy --master --a_b --a_b", "portolan proxy --master --a_b --a-b"),
            ("portolan proxy --init_only --a_b", "portolan proxy --init-only --a-b"),
            ("portolan proxy -v --a_b --c_d", "portolan proxy -v --a_b --c-d"),
            ("portolan proxy -- --a_b", "portolan proxy -- --a_b"),
            ("portolan proxy --master -- --a_b", "portolan proxy --master -- --a-b"),
            ("portolan proxy  --a_b  ", "portolan proxy --a-b"),
            ("portolan proxy --master  --a_b", "portolan proxy --master  --a-b"),
            ("portolan proxy -- ", "portolan proxy --"),
            ("portolan explain --cluster_cidr=a_b a_b", "portolan explain --cluster-cidr=a_b a_b"),
            ("portolan plan --cluster_cidr=a_b", "portolan plan --cluster-cidr=a_b"),
            ("portolan check --cluster_cidr=a_b", "portolan check --cluster-cidr=a_b"),
            ("portolan serve --a_b ", "portolan serve --a_b "),
            ("portolan", "portolan"),
            ("kube-proxy-old --a_b", "kube-proxy-old --a_b"),
        ];
        for (line, want) in table {
            let got = normalise(line.split(' ').map(OsString::from));
            assert_eq!(got, want.split(' ').map(OsString::from).collect::<Vec<_>>(), "{line}");
        }
        assert_eq!(normalise([]), [OsString::new()]);
        for (called, is_plugin) in
            [("kubectl-portolan", true), ("/usr/bin/kubectl-portolan", true), ("portolan", false)]
        {
            assert_eq!(is_kubectl_plugin(&[called.into(), "explain".into()]), is_plugin, "{called}");
        }
    }
}
