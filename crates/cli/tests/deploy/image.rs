//! The image that is built without docker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::files::{path, run};

/// Serialises the tests that download packages: apt may have to download its lists first, which it cannot do twice at
/// the same time.
static APT: Mutex<()> = Mutex::new(());

/// Downloads the iptables programs of the image.
fn iptables(folder: &Path) {
    let _turn = APT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(path("deploy/image/iptables.sh"));
    command.arg(folder);
    run(command);
}

/// Builds an image of a program, with the files of a folder. `more`: further arguments of the script.
fn build(program: &Path, output: &Path, folder: Option<&Path>, more: &[&str]) {
    let mut command = Command::new(path("deploy/image/build.sh"));
    command.arg(program).arg(output).arg("registry.example/portolan:test").args(folder).args(more);
    run(command);
}

fn unpack(archive: &Path, folder: &Path) {
    fs::create_dir(folder).unwrap();
    let mut command = Command::new("tar");
    command.args(["--xattrs", "--xattrs-include=*", "-xf"]).arg(archive).arg("-C").arg(folder);
    run(command);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The files and the configuration of an image, as a runtime unpacks them.
pub(crate) struct Unpacked {
    pub(crate) root: PathBuf,
    /// The image's process configuration.
    pub(crate) config: Value,
    tags: Value,
}

impl Unpacked {
    /// Builds and unpacks the image of a program with the iptables programs.
    pub(crate) fn with_iptables(program: &Path, folder: &Path) -> Self {
        iptables(&folder.join("iptables"));
        Self::new(program, folder, Some(&folder.join("iptables")), &[])
    }

    fn new(program: &Path, folder: &Path, with: Option<&Path>, more: &[&str]) -> Self {
        let at = |name: &str| folder.join(name);
        build(program, &at("image.tar"), with, more);
        unpack(&at("image.tar"), &at("image"));
        let manifest = fs::read_to_string(at("image/manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        let config = at("image").join(manifest[0]["Config"].as_str().unwrap());
        let config: Value = serde_json::from_str(&fs::read_to_string(config).unwrap()).unwrap();
        let layer = manifest[0]["Layers"][0].as_str().unwrap();
        let digest = format!("sha256:{}", layer.trim_end_matches(".tar"));
        assert_eq!(config["rootfs"]["diff_ids"][0], digest.as_str());
        unpack(&at("image").join(layer), &at("root"));
        Self { root: at("root"), config: config["config"].clone(), tags: manifest[0]["RepoTags"].clone() }
    }

    /// Runs a program that sees only the image's files.
    fn output(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("chroot");
        command.arg(&self.root).args(arguments);
        run(command)
    }
}

#[test]
fn it_holds_the_node_agent_with_one_capability() {
    let folder = tempfile::tempdir().unwrap();
    let image = Unpacked::new("/bin/true".as_ref(), folder.path(), None, &[]);
    assert_eq!(image.tags[0], "registry.example/portolan:test");
    assert_eq!(image.config["Entrypoint"][0], "/usr/local/bin/portolan-proxy");
    assert_eq!(
        (names(&image.root), names(&image.root.join("usr"))),
        (vec!["usr".into()], vec!["local".into()])
    );
    assert_own_programs(&image.root);
}

#[test]
fn it_holds_the_program_for_hosts_with_one_capability() {
    let folder = tempfile::tempdir().unwrap();
    let image = Unpacked::new("/bin/true".as_ref(), folder.path(), None, &["", "portolan"]);
    assert_eq!(image.config["Entrypoint"][0], "/usr/local/bin/portolan");
    assert_eq!(names(&image.root.join("usr/local/bin")), ["portolan"]);
    assert_has_capability(&image.root.join("usr/local/bin/portolan"));
}

/// Asserts that the image has the program, also under the name that a `DaemonSet` made for kube-proxy starts.
fn assert_own_programs(root: &Path) {
    let programs = root.join("usr/local/bin");
    assert_eq!(names(&programs), ["kube-proxy", "portolan-proxy"]);
    assert_eq!(fs::read_link(programs.join("kube-proxy")).unwrap(), Path::new("portolan-proxy"));
    assert_has_capability(&programs.join("portolan-proxy"));
}

fn assert_has_capability(program: &Path) {
    let mut capabilities = Command::new("getcap");
    capabilities.arg(program);
    let capabilities = run(capabilities);
    assert!(capabilities.trim_end().ends_with(" cap_net_bind_service,cap_net_admin=p"), "{capabilities}");
}

#[test]
fn the_programs_of_iptables_run_in_it_with_all_extensions() {
    let folder = tempfile::tempdir().unwrap();
    let image = Unpacked::with_iptables("/bin/true".as_ref(), folder.path());
    assert_own_programs(&image.root);
    for (suffix, variant) in [("", "(nf_tables)"), ("-nft", "(nf_tables)"), ("-legacy", "(legacy)")] {
        for program in ["iptables", "ip6tables"] {
            for action in ["", "-save", "-restore"] {
                let name = format!("{program}{suffix}{action}");
                let version = image.output(&[&format!("/usr/sbin/{name}"), "--version"]);
                assert!(version.starts_with(program), "{name}: {version}");
                assert!(version.trim_end().ends_with(variant), "{name}: {version}");
            }
        }
    }
    let libraries = image.root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let extensions = names(&libraries.join("xtables"));
    for wanted in ["libipt_REJECT.so", "libip6t_REJECT.so", "libxt_set.so", "libxt_statistic.so"] {
        assert!(extensions.iter().any(|name| name == wanted), "{wanted}: {extensions:?}");
    }
    let loader = names(&libraries).into_iter().find(|name| name.starts_with("ld-linux")).unwrap();
    let inside = Path::new("/").join(libraries.strip_prefix(&image.root).unwrap());
    let loader = inside.join(loader);
    for extension in &extensions {
        let file = inside.join("xtables").join(extension);
        image.output(&[loader.to_str().unwrap(), "--list", file.to_str().unwrap()]);
    }
}

#[test]
fn licences_are_in_it() {
    let folder = tempfile::tempdir().unwrap();
    iptables(folder.path());
    let packages = names(&folder.path().join("usr/share/doc"));
    assert!(packages.iter().any(|name| name == "iptables") && packages.iter().any(|name| name == "libc6"));
    // Each package also has its version, by which its source is found.
    assert_eq!(packages, names(&folder.path().join("var/lib/dpkg/status.d")));
    let named = regex::Regex::new("/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]").unwrap();
    let mut found = 0;
    for package in packages {
        let file = folder.path().join("usr/share/doc").join(&package).join("copyright");
        let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
        for licence in named.find_iter(&text) {
            let file = folder.path().join(licence.as_str().trim_start_matches('/'));
            assert!(file.is_file(), "{package}: {}", licence.as_str());
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn its_bytes_are_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| {
        let with = folder.path().join(format!("{name}.iptables"));
        iptables(&with);
        let output = folder.path().join(name);
        build("/bin/true".as_ref(), &output, Some(&with), &[]);
        output
    });
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
}
