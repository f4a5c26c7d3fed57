use std::fs;
use std::os::unix::{fs::symlink, net::UnixListener};
use std::path::Path;
use std::process::Command;

use tempfile::tempdir;

use crate::site::{PATIENCE, Site, until};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(folder: &Path, name: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n"
    );
    let hidden = folder.join(".new");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, folder.join(format!("{name}.yaml"))).unwrap();
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Maximum memory of a server that reads at most 64 MiB of a device, the limit of a manifest.
const MOST_MEMORY: u64 = 200 << 20;

#[test]
fn special_files_are_reported_and_block_no_request() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    service(folder.path(), "first");
    fifo(&at("a-fifo.yaml"));
    symlink("/dev/zero", at("b-device.yaml")).unwrap();
    let _socket = UnixListener::bind(at("c-socket.json")).unwrap();
    // A regular file by its type, whose readers block.
    symlink("/proc/kmsg", at("d-endless.yml")).unwrap();
    symlink("nowhere", at("e-dangling.yaml")).unwrap();
    fs::File::create(at("f-large.yaml")).unwrap().set_len(1 << 40).unwrap();

    let site = Site::new();
    let mut server = site.serve(&[], &["--in-memory", "--manifests", folder.path().to_str().unwrap()]);
    site.ready(&mut server);
    assert!(site.names(SERVICES).contains(&"first".to_owned()));
    // Files that are added while the server runs.
    fifo(&at("g-fifo.yaml"));
    symlink("/dev/full", at("h-device.yaml")).unwrap();
    service(folder.path(), "second");
    until("the file after them counts", || site.names(SERVICES).contains(&"second".to_owned()));
    assert_eq!(site.ask("GET", "/livez", "").code, 200);
    for (file, what) in [
        ("a-fifo.yaml", "this is a FIFO"),
        ("b-device.yaml", "this is a device"),
        ("c-socket.json", "this is a socket"),
        ("d-endless.yml", "cannot be read"),
        ("e-dangling.yaml", "cannot be read"),
        ("f-large.yaml", "more than the 67108864 bytes"),
        ("g-fifo.yaml", "this is a FIFO"),
        ("h-device.yaml", "this is a device"),
    ] {
        until("the file is named", || {
            server.output().lines().any(|line| line.contains(file) && line.contains(what))
        });
    }
    let most = server.resident_high_water().unwrap();
    assert!(most < MOST_MEMORY, "{most} bytes");
    // A FIFO that is replaced by a regular file is read like any other.
    fs::remove_file(at("a-fifo.yaml")).unwrap();
    service(folder.path(), "a-fifo");
    until("the file in its place counts", || site.names(SERVICES).contains(&"a-fifo".to_owned()));
    assert!(server.terminate(PATIENCE).unwrap().success());
}

/// Mounts an unresponsive file system in a mount namespace of the server: a FUSE whose other end the server holds
/// open and does not serve.
const HANGING: &str = "exec 3<>/dev/fuse && \
    mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none \"$0\" && exec \"$@\"";

#[test]
fn a_hanging_manifests_folder_does_not_block_health_checks() {
    let (folder, data) = (tempdir().unwrap(), tempdir().unwrap());
    let (path, data) = (folder.path().to_str().unwrap(), data.path().to_str().unwrap());
    let arguments = ["--data-dir", data, "--manifests", path, "--request-timeout", "1s"];
    let hanging = ["unshare", "--mount", "sh", "-c", HANGING, path];

    let site = Site::new();
    let mut server = site.serve(&hanging, &arguments);
    let is_alive = || site.try_ask("GET", "/livez", "").is_some_and(|answer| answer.code == 200);
    server.wait_until(PATIENCE, "the server answers", is_alive).unwrap();
    let said = site.ask("GET", "/readyz", "");
    assert_eq!((said.code, said.body.contains("[-]manifests")), (503, true), "{}", said.body);
    // The content of the folder is unknown, and must not be treated as empty.
    assert_eq!(site.ask("GET", SERVICES, "").code, 504);
    assert_eq!(site.ask("GET", &format!("{SERVICES}?watch=1"), "").code, 504);
    assert!(server.terminate(PATIENCE).unwrap().success());

    // A server that has read the folder once serves the known objects.
    service(folder.path(), "first");
    let mut server = site.serve(&[], &arguments);
    site.ready(&mut server);
    assert!(server.terminate(PATIENCE).unwrap().success());
    let mut server = site.serve(&hanging, &arguments);
    server.wait_until(PATIENCE, "the server answers", is_alive).unwrap();
    assert!(site.names(SERVICES).contains(&"first".to_owned()));
    assert_eq!(site.ask("GET", "/readyz", "").code, 503);
    assert!(server.terminate(PATIENCE).unwrap().success());
}
