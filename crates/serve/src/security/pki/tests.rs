use std::time::Duration;

use tempfile::{TempDir, tempdir};

use super::*;
use crate::security::kubeconfig::Kubeconfig;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Creates a folder with all files.
fn complete() -> (TempDir, Pki) {
    let folder = tempdir().unwrap();
    let pki = Pki::open(folder.path().join("pki")).unwrap();
    pki.server(&names(&["localhost", "::1"]), SystemTime::now()).unwrap();
    pki.issue_token(Role::Admin, "admin").unwrap();
    (folder, pki)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_the_owner_can_read() {
    let (_folder, pki) = complete();
    assert_eq!(mode(&pki.folder), 0o700);
    let mut found: Vec<_> = fs::read_dir(&pki.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let expected = ["ca.crt", "ca.key", "lock", "server.crt", "server.key", "tokens"];
    assert_eq!(found, expected.map(|name| pki.path(name)));
    for path in &found {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    fs::set_permissions(pki.path("ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&pki.folder, fs::Permissions::from_mode(0o755)).unwrap();
    Pki::open(&pki.folder).unwrap();
    assert_eq!((mode(&pki.folder), mode(&pki.path("ca.key"))), (0o700, 0o600));
}

#[test]
fn a_usable_pki_is_not_changed() {
    let (_folder, pki) = complete();
    let wanted = names(&["localhost"]);
    let files = ["ca.crt", "ca.key", "server.crt", "server.key", "tokens"];
    let before = files.map(|name| pki.read(name).unwrap());
    let again = Pki::open(&pki.folder).unwrap();
    again.server(&wanted, SystemTime::now() + 200 * DAY).unwrap();
    assert_eq!(files.map(|name| again.read(name).unwrap()), before);
}

/// Tests every state that a crash can leave. In the order of writing, the files up to one exist, and the next one
/// exists only under its temporary name.
#[test]
fn a_crash_at_any_point_leaves_something_usable() {
    let (_folder, whole) = complete();
    let order = ["ca.key", "ca.crt", "server.key", "server.crt", "tokens"];
    for there in 0..=order.len() {
        let folder = tempdir().unwrap();
        for name in &order[..there] {
            fs::copy(whole.path(name), folder.path().join(name)).unwrap();
        }
        if let Some(next) = order.get(there) {
            fs::write(folder.path().join(format!(".{next}.new")), "-----BEGIN half").unwrap();
        }
        let pki = Pki::open(folder.path()).unwrap();
        let pair = pki.server(&names(&["localhost"]), SystemTime::now()).unwrap();
        assert!(Facts::of_pem(&pair.certificate).unwrap().is_of(&KeyPair::from_pem(&pair.key).unwrap()));
        let token = pki.issue_token(Role::Proxy, "node").unwrap();
        assert!(
            tokens::Tokens::parse(&pki.tokens().unwrap(), tokens::Form::Hashed)
                .unwrap()
                .find(&token)
                .is_some()
        );
        if there > 1 {
            assert_eq!(pki.authority_certificate().unwrap(), whole.authority_certificate().unwrap());
        }
    }
}

#[test]
fn a_renewal_that_broke_off_is_done_again() {
    let (_folder, pki) = complete();
    pki.write("server.key", &KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let pair = pki.server(&names(&["localhost"]), SystemTime::now()).unwrap();
    assert!(Facts::of_pem(&pair.certificate).unwrap().is_of(&KeyPair::from_pem(&pair.key).unwrap()));
}

#[test]
fn an_unsuitable_server_certificate_is_replaced() {
    let (_folder, pki) = complete();
    let now = SystemTime::now();
    let first = pki.server(&names(&["localhost"]), now).unwrap();
    let other = pki.server(&names(&["localhost", "192.0.2.7"]), now).unwrap();
    assert_ne!(first.certificate, other.certificate);
    assert_eq!(Facts::of_pem(&other.certificate).unwrap().names, ["localhost", "192.0.2.7"]);
    // Less than a third of a year before expiry.
    let late = now + 245 * DAY;
    let renewed = pki.server(&names(&["localhost"]), late).unwrap();
    assert_ne!(renewed.certificate, other.certificate);
    assert!(Facts::of_pem(&renewed.certificate).unwrap().days_left(late) >= 364);
    for name in ["ca.key", "ca.crt"] {
        fs::remove_file(pki.path(name)).unwrap();
    }
    let fresh = Pki::open(&pki.folder).unwrap();
    let of_new_authority = fresh.server(&names(&["localhost"]), now).unwrap();
    assert!(of_new_authority.certificate.ends_with(&fresh.authority_certificate().unwrap()));
}

#[test]
fn nothing_outlives_the_authority() {
    let (_folder, pki) = complete();
    let authority = Facts::of_pem(&pki.authority_certificate().unwrap()).unwrap();
    let late = authority.not_after - DAY;
    let pair = pki.server(&names(&["localhost"]), late).unwrap();
    assert_eq!(Facts::of_pem(&pair.certificate).unwrap().not_after, authority.not_after);
    let error = pki.authority(authority.not_after).unwrap_err().to_string();
    assert!(error.contains("ca.crt") && error.contains("remove it"), "{error}");
    // As the error message says. The key stays, so what clients trust stays, too.
    fs::remove_file(pki.path("ca.crt")).unwrap();
    Pki::open(&pki.folder).unwrap();
    assert!(Facts::of_pem(&pki.authority_certificate().unwrap()).is_some());
}

#[test]
fn an_authority_that_is_not_whole_is_not_replaced() {
    for spoil in [
        |pki: &Pki| fs::remove_file(pki.path("ca.key")).unwrap(),
        |pki: &Pki| pki.write("ca.key", &KeyPair::generate().unwrap().serialize_pem()).unwrap(),
        |pki: &Pki| pki.write("ca.key", "nothing").unwrap(),
        |pki: &Pki| pki.write("ca.crt", "nothing").unwrap(),
    ] {
        let (_folder, pki) = complete();
        spoil(&pki);
        let before = pki.read("ca.crt").unwrap();
        let error = Pki::open(&pki.folder).unwrap_err().to_string();
        assert!(error.contains("do not belong together"), "{error}");
        assert_eq!(pki.read("ca.crt").unwrap(), before);
    }
}

#[test]
fn processes_that_start_together_make_one_authority() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("deep/pki");
    let open = || Pki::open(&path).unwrap().authority_certificate().unwrap();
    let all: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|certificate| *certificate == all[0]));
}

#[test]
fn invalid_names_are_refused() {
    let (_folder, pki) = complete();
    for name in ["", "a\nb", "a\rb", &"x".repeat(65)] {
        assert!(matches!(pki.issue_token(Role::Admin, name), Err(PkiError::Name(_))), "{name:?}");
        assert!(matches!(pki.issue_client(Role::Admin, name), Err(PkiError::Name(_))), "{name:?}");
    }
    let error = pki.server(&names(&["ä"]), SystemTime::now()).err().unwrap().to_string();
    assert!(error.contains("--tls-san"), "{error}");
}

/// The file of tokens would grow with every start of a server.
#[test]
fn a_token_is_kept_while_the_server_accepts_it_for_the_role() {
    let (_folder, pki) = complete();
    let of = |server: &str, former: &str| {
        Kubeconfig::with_former_token(&pki, server, former, Role::Proxy).unwrap()
    };
    let token = |config: &Kubeconfig| {
        let (_, rest) = config.text().split_once("token: ").unwrap();
        rest.lines().next().unwrap().to_owned()
    };
    let first = of("https://192.0.2.1:6443", "");
    let second = of("https://192.0.2.2:6443", first.text());
    assert_eq!(token(&second), token(&first));
    assert!(second.text().contains("https://192.0.2.2:6443") && !second.text().contains("192.0.2.1"));
    let admin = Kubeconfig::with_token(&pki, "https://a", None, Role::Admin, "portolan-admin").unwrap();
    let stored = pki.tokens().unwrap().lines().count();
    for former in [admin.text(), "users: [{user: {token: made-up}}]", "users: 7", "no: [kubeconfig"] {
        assert_ne!(token(&of("https://a", former)), token(&first), "{former}");
    }
    assert_eq!(pki.tokens().unwrap().lines().count(), stored + 4);
}
