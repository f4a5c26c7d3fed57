//! Rewrites the command line before it is parsed: accepts the spellings of kube-proxy that the parser does not know.

use std::ffi::OsString;
use std::path::Path;

use super::flags;

/// Under this name, the program only is the proxy.
const KUBE_PROXY: &str = "kube-proxy";
/// The subcommand that is then inserted.
const PROXY: &str = "proxy";

/// Returns true if the program was called as `kube-proxy`.
pub(crate) fn is_kube_proxy(arguments: &[OsString]) -> bool {
    arguments
        .first()
        .is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == KUBE_PROXY))
}

/// Inserts `proxy` if the program was called as `kube-proxy`. Replaces underscores in the names of the proxy's flags
/// by hyphens. Drops empty arguments of the proxy that are not values, because kube-proxy tolerates them.
pub(crate) fn normalise(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let command =
        if is_kube_proxy(std::slice::from_ref(&program)) { Some(PROXY.into()) } else { arguments.next() };
    let is_proxy = command.as_ref().is_some_and(|command| command == PROXY);
    let mut normal: Vec<OsString> = std::iter::once(program).chain(command).collect();
    let mut is_value = false;
    let mut is_over = !is_proxy;
    for argument in arguments {
        is_over |= !is_value && argument == "--";
        if is_value || (is_over && !(is_proxy && argument.is_empty())) {
            normal.push(argument);
            is_value = false;
        } else if !argument.is_empty() {
            let hyphenated = hyphenate(argument);
            is_value = takes_next(&hyphenated);
            normal.push(hyphenated);
        }
    }
    normal
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
            ("portolan serve --a_b ", "portolan serve --a_b "),
            ("portolan", "portolan"),
            ("kube-proxy-old --a_b", "kube-proxy-old --a_b"),
        ];
        for (line, want) in table {
            let got = normalise(line.split(' ').map(OsString::from));
            assert_eq!(got, want.split(' ').map(OsString::from).collect::<Vec<_>>(), "{line}");
        }
        assert_eq!(normalise([]), [OsString::new()]);
    }
}
