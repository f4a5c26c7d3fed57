//! Tests of the help and of the page that is made from the table.

use std::path::Path;

use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Portolan::command().debug_assert();
}

#[test]
fn the_help() {
    insta::assert_snapshot!(parse(&["--help"]).expect_err("the help"));
}

/// Compares `docs/reference/flags.md` with the table. With `UPDATE=1` in the environment, writes the page.
#[test]
fn the_reference_page_is_made_from_the_table() {
    let mut page = String::from(PAGE_HEAD);
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group && !flag.hidden {
            group = flag.group;
            page.extend(["\n## ", group, "\n", TABLE_HEAD]);
        }
        if !flag.hidden {
            page.push_str(&row(flag, flag.help));
        }
    }
    page.extend(["\n## Not in the help\n", TABLE_HEAD]);
    for flag in FLAGS.iter().filter(|flag| flag.hidden) {
        let help = flag
            .deprecated
            .map_or_else(|| flag.help.to_owned(), |instead| format!("{}. Deprecated: {instead}", flag.help));
        page.push_str(&row(flag, &help));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/flags.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs/reference");
        std::fs::write(&path, &page).expect("flags.md");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/reference/flags.md is not what the code says: run with UPDATE=1");
}

/// The flags of kube-proxy that have no field in its configuration.
const OF_KUBE_PROXY: [&str; 10] = [
    "config",
    "write-config-to",
    "cleanup",
    "init-only",
    "version",
    "master",
    "machine-id-file",
    "boot-id-file",
    "healthz-port",
    "metrics-port",
];

#[test]
fn the_page_about_differences_lists_the_flags_of_portolan() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (before, _) = page.split_once("exist in Portolan\nonly.").expect("the sentence");
    let (_, list) = before.rsplit_once("reference/flags.md)).").expect("its beginning");
    let listed: BTreeSet<&str> =
        list.split("`--").skip(1).filter_map(|word| word.split('`').next()).collect();
    let is_own = |flag: &&flags::Flag| {
        let section = flag.field.split('.').next().unwrap_or_default();
        match section {
            "" => !OF_KUBE_PROXY.contains(&flag.name),
            _ => ["portolan", "addressGuard", "readiness"].contains(&section),
        }
    };
    let own: BTreeSet<&str> = FLAGS.iter().filter(is_own).map(|flag| flag.name).collect();
    assert_eq!(listed, own);
}

fn row(flag: &flags::Flag, help: &str) -> String {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let counts = if flag.with_config { "yes" } else { "" };
    let value = flag.kind.value_name();
    format!(
        "| `--{}` | `{value}` | {} | {} | {counts} | {help}. |\n",
        flag.name,
        code(flag.default),
        code(flag.field)
    )
}

const TABLE_HEAD: &str =
    "\n| flag | value | default | field | with `--config` | meaning |\n|---|---|---|---|---|---|\n";

const PAGE_HEAD: &str = "\
# Command line of the proxy

`portolan-proxy` takes the flags of kube-proxy 1.36, and so does `portolan proxy`. Called by the name `kube-proxy`, both
programs are only the proxy. This page is made from the code: `UPDATE=1 cargo test -p portolan-proxy reference_page`.

- `--name=value` or `--name value`. Underscores in names are hyphens. The last use counts; lists, gates and patterns
  add up.
- Booleans are `--name` or `--name=true`, in the spellings `1 t T true TRUE True` and `0 f F false FALSE False`.
- Durations are Go's: `30s`, `1h30m`, `250ms`. Whole numbers may be written `0x1f`, `017` and `1_000`.
- With `--config`, the file replaces all flags but those marked; the log names the ones that are ignored.
- `portolan-proxy` ends with 0 after `--help`, `--version`, `--cleanup`, `--init-only` and `--write-config-to`, and with
  1 after any mistake.
- The variable `PORTOLAN_STATE_DIRS` names the folders for [former values of kernel settings](../cleanup.md#kernel-settings),
  separated by colons: `/run/portolan:/var/lib/portolan`. The first one is also for [elements](../modes.md#restarts) in nftables mode.
";
