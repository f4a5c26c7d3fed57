//! Certificates and tokens whose files change while the server runs.

use std::fs;
use std::path::Path;

use portolan_serve::{Pki, Role};
use tempfile::{TempDir, tempdir};

use crate::client::{Client, SERVICES, Secure, certificates, next_event, start, start_with, until};

/// The authority and the server certificate of another folder.
struct Given {
    _folder: TempDir,
    authority: String,
    pair: [String; 2],
}

impl Given {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        // A server creates its certificate when it starts.
        let settings = crate::client::settings(folder.path());
        let transport = portolan_serve::Transport::Tls(Box::new(settings));
        let config = portolan_serve::Config { transport, ..portolan_serve::Config::default() };
        portolan_serve::Server::start(config).unwrap().stop().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join("pki").join(name)).unwrap();
        Self { authority: read("ca.crt"), pair: [read("server.crt"), read("server.key")], _folder: folder }
    }

    fn write(&self, folder: &Path) {
        fs::write(folder.join("given.key"), &self.pair[1]).unwrap();
        fs::write(folder.join("given.crt"), &self.pair[0]).unwrap();
    }
}

fn shown(client: &Client) -> Option<Vec<u8>> {
    let stream = client.connect().ok()?;
    Some(stream.get_ref().conn.peer_certificates()?.first()?.to_vec())
}

#[test]
fn a_given_certificate_is_changed_under_open_connections() {
    let (first, second) = (Given::new(), Given::new());
    let secure = start_with(|_, tls, folder| {
        first.write(folder);
        tls.certificate = Some((folder.join("given.crt"), folder.join("given.key")));
    });
    let admin = secure.client(Role::Admin);
    let before = Client { roots: first.authority.clone(), ..admin.clone() };
    let after = Client { roots: second.authority.clone(), ..admin };
    let mut watch = before.watch("/api/v1/services?watch=true");
    let mut open = before.connect().unwrap();
    assert_eq!(before.ask_on(&mut open, "GET", SERVICES, "").code, 200);
    assert!(shown(&after).is_none());

    // Files that cannot be used change nothing.
    fs::write(secure.path("given.key"), "nothing").unwrap();
    fs::write(secure.path("tokens-that-are-not-read"), "").unwrap();
    assert_eq!(before.create("one").code, 201);

    second.write(secure.folder.path());
    until("the new certificate", || shown(&after).is_some());
    assert!(shown(&before).is_none());
    assert_eq!(after.create("two").code, 201);
    assert_eq!(before.ask_on(&mut open, "GET", SERVICES, "").code, 200);
    for name in ["one", "two"] {
        assert_eq!(next_event(&mut watch)["object"]["metadata"]["name"], name);
    }
}

#[test]
fn mismatched_files_fail_the_start() {
    let given = Given::new();
    let other = Given::new();
    for spoil in [
        |folder: &Path, _: &Given| fs::remove_file(folder.join("given.crt")).unwrap(),
        |folder: &Path, _: &Given| fs::write(folder.join("given.crt"), "nothing").unwrap(),
        |folder: &Path, other: &Given| fs::write(folder.join("given.key"), &other.pair[1]).unwrap(),
    ] {
        let folder = tempdir().unwrap();
        given.write(folder.path());
        spoil(folder.path(), &other);
        let mut tls = crate::client::settings(folder.path());
        tls.certificate = Some((folder.path().join("given.crt"), folder.path().join("given.key")));
        let transport = portolan_serve::Transport::Tls(Box::new(tls));
        let config = portolan_serve::Config { transport, ..portolan_serve::Config::default() };
        let error = portolan_serve::Server::start(config).unwrap_err().to_string();
        assert!(error.contains("certificate") || error.contains("--tls-cert-file"), "{error}");
    }
}

#[test]
fn the_own_certificate_is_made_anew_when_it_is_lost() {
    let secure = start();
    let admin = secure.client(Role::Admin);
    let before = shown(&admin).unwrap();
    fs::remove_file(secure.path("pki").join("server.crt")).unwrap();
    until("another certificate", || shown(&admin).unwrap() != before);
    let stored = fs::read_to_string(secure.path("pki").join("server.crt")).unwrap();
    assert_eq!(shown(&admin).unwrap(), certificates(&stored)[0].to_vec());
}

fn write_tokens(secure: &Secure, text: &str) {
    let (new, path) = (secure.path("tokens.new"), secure.path("tokens.csv"));
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn tokens_and_authorities_are_taken_away_from_open_connections() {
    let (other, _folder) = {
        let folder = tempdir().unwrap();
        (Pki::open(folder.path()).unwrap(), folder)
    };
    let secure = start_with(|_, tls, folder| {
        fs::write(folder.join("tokens.csv"), "old,alice,1,system:masters\n").unwrap();
        fs::write(folder.join("clients.crt"), other.authority_certificate().unwrap()).unwrap();
        tls.tokens = Some(folder.join("tokens.csv"));
        tls.client_authorities = Some(folder.join("clients.crt"));
    });
    let token = secure.anonymous().with_token("old");
    let certificate = secure.anonymous().with_certificate(&other, Role::Admin);
    let (mut first, mut second) = (token.connect().unwrap(), certificate.connect().unwrap());
    assert_eq!(token.ask_on(&mut first, "GET", SERVICES, "").code, 200);
    assert_eq!(certificate.ask_on(&mut second, "GET", SERVICES, "").code, 200);

    write_tokens(&secure, "new,alice,1,system:masters\n");
    // For an unknown token, the file is read at once.
    assert_eq!(secure.anonymous().with_token("new").get(SERVICES).code, 200);
    until("the old token is refused", || token.ask_on(&mut first, "GET", SERVICES, "").code == 401);
    // The server's own authority replaces the other one.
    fs::write(secure.path("clients.crt"), secure.pki.authority_certificate().unwrap()).unwrap();
    until("the certificate is refused", || certificate.ask_on(&mut second, "GET", SERVICES, "").code == 401);

    write_tokens(&secure, "not a line of tokens\n");
    let known = secure.anonymous().with_token("new");
    assert_eq!(secure.anonymous().with_token("not a line of tokens").get(SERVICES).code, 401);
    assert_eq!(known.get(SERVICES).code, 200);
}
