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

/// Most memory that a server takes which reads no more of a device than a manifest may have, 64 MiB.
const MOST_MEMORY: u64 = 200 << 20;

#[test]
fn what_is_no_regular_file_is_named_and_keeps_nobody_waiting() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    service(folder.path(), "first");
    fifo(&at("a-fifo.yaml"));
    symlink("/dev/zero", at("b-device.yaml")).unwrap();
    let _socket = UnixListener::bind(at("c-socket.json")).unwrap();
    // A regular file, as far as its kind goes, whose readers wait for what is to come.
    symlink("/proc/kmsg", at("d-endless.yml")).unwrap();
    symlink("nowhere", at("e-dangling.yaml")).unwrap();
    fs::File::create(at("f-large.yaml")).unwrap().set_len(1 << 40).unwrap();

    let site = Site::new();
    let mut server = site.serve(&[], &["--in-memory", "--manifests", folder.path().to_str().unwrap()]);
    site.ready(&mut server);
    assert!(site.names(SERVICES).contains(&"first".to_owned()));
    // What comes while it runs.
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
    // A FIFO that becomes a file counts like any other.
    fs::remove_file(at("a-fifo.yaml")).unwrap();
    service(folder.path(), "a-fifo");
    until("the file in its place counts", || site.names(SERVICES).contains(&"a-fifo".to_owned()));
    assert!(server.terminate(PATIENCE).unwrap().success());
}
