//! The image that is made without docker.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::files::{path, run};

/// Makes an image of any small program.
fn build(output: &Path) {
    let mut command = Command::new(path("deploy/image/build.sh"));
    command.arg("/bin/true").arg(output).arg("registry.example/portolan:test");
    run(command);
}

fn unpack(archive: &Path, folder: &Path) {
    fs::create_dir(folder).unwrap();
    let mut command = Command::new("tar");
    command.args(["--xattrs", "--xattrs-include=*", "-xf"]).arg(archive).arg("-C").arg(folder);
    run(command);
}

#[test]
fn it_holds_one_program_with_one_capability() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    build(&at("image.tar"));
    unpack(&at("image.tar"), &at("image"));
    let manifest = fs::read_to_string(at("image/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest[0]["RepoTags"][0], "registry.example/portolan:test");
    let config = at("image").join(manifest[0]["Config"].as_str().unwrap());
    let config: serde_json::Value = serde_json::from_str(&fs::read_to_string(config).unwrap()).unwrap();
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/local/bin/portolan");
    let layer = manifest[0]["Layers"][0].as_str().unwrap();
    let digest = format!("sha256:{}", layer.trim_end_matches(".tar"));
    assert_eq!(config["rootfs"]["diff_ids"][0], digest.as_str());

    unpack(&at("image").join(layer), &at("root"));
    let programs = at("root/usr/local/bin");
    let mut names: Vec<_> =
        fs::read_dir(&programs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["kube-proxy", "portolan"]);
    assert_eq!(fs::read_link(programs.join("kube-proxy")).unwrap(), Path::new("portolan"));
    let mut capabilities = Command::new("getcap");
    capabilities.arg(programs.join("portolan"));
    let capabilities = run(capabilities);
    assert!(capabilities.trim_end().ends_with(" cap_net_admin=p"), "{capabilities}");
}

#[test]
fn its_bytes_are_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    build(&first);
    build(&second);
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
}
