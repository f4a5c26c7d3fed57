//! Credentials from exec plug-ins.

use portolan_testkit::Log;
use portolan_watch::{WatchEvent, Watcher};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, capabilities, capability_is_in_ambient_set,
    configure_capability_in_ambient_set, set_capabilities, set_capabilities_secure_bits,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time;

use crate::certificates::Authority;
use crate::home::{Home, failure, get};
use crate::server::{DEADLINE, Server};

/// Returns the kubeconfig's user, whose plug-in is in this directory.
fn user(home: &Home) -> String {
    format!(
        "exec: {{command: ./plugin, apiVersion: client.authentication.k8s.io/v1, provideClusterInfo: true,
          args: ['{}', --cluster, a b], env: [{{name: WHO, value: me}}], interactiveMode: Never}}",
        home.path("script").display()
    )
}

/// Makes a plug-in that records each run and its input, and prints `credential`.
fn home(status: &Value) -> Home {
    let home = Home::new();
    let script = "cd \"$(dirname \"$0\")\"\n\
        echo \"$WHO $*\" >> runs\n\
        printf %s \"$KUBERNETES_EXEC_INFO\" > input\n\
        grep ^Cap /proc/self/status > capabilities\n\
        if [ -e verbose ]; then cat /dev/zero >&2; fi\n\
        if [ -e broken ]; then echo no luck >&2; exit 3; fi\n\
        cat credential\n";
    home.write("script", script);
    // A symbolic link, because a program file that is still open for writing in another test's child cannot be run.
    std::os::unix::fs::symlink("/bin/sh", home.path("plugin")).unwrap();
    prints(&home, status);
    home
}

fn prints(home: &Home, status: &Value) {
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
    home.write("credential", &credential.to_string());
}

fn runs(home: &Home) -> usize {
    home.read("runs").lines().count()
}

#[tokio::test]
async fn a_token_is_kept_until_it_expires() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = home(&json!({"token": "t1", "expirationTimestamp": "2099-01-01T00:00:00Z"}));
    let client = home.client(&server, &authority, &user(&home)).await;
    server.state().token = Some("t1".to_owned());
    assert_eq!(runs(&home), 0, "it runs when it is needed");
    assert_eq!((get(&client, "/").await, get(&client, "/").await), (200, 200));
    assert_eq!(home.read("runs"), "me --cluster a b\n");
    let input: Value = serde_json::from_str(&home.read("input")).unwrap();
    assert_eq!(input["apiVersion"], "client.authentication.k8s.io/v1");
    assert_eq!(input["spec"]["interactive"], false);
    let url = format!("https://{}", server.address);
    assert!(input["spec"]["cluster"]["server"].as_str().unwrap().starts_with(&url), "{input}");
    assert!(input["spec"]["cluster"]["certificate-authority-data"].is_string(), "{input}");

    prints(&home, &json!({"token": "t2", "expirationTimestamp": "2020-01-01T00:00:00Z"}));
    server.state().token = Some("t2".to_owned());
    assert_eq!(get(&client, "/").await, 200, "a 401 makes it run again");
    assert_eq!(runs(&home), 2);
    assert_eq!(get(&client, "/").await, 200);
    assert_eq!(runs(&home), 3, "what has expired is not used");
}

#[tokio::test]
async fn a_plug_in_that_fails_is_quoted_and_tried_again() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = home(&json!({"token": "t"}));
    home.write("broken", "");
    let client = home.client(&server, &authority, &user(&home)).await;
    let error = failure(&client).await;
    assert!(error.contains("no luck") && error.contains("exit status: 3"), "{error}");
    std::fs::remove_file(home.path("broken")).unwrap();
    for (status, part) in [
        (json!({}), "neither a token nor"),
        (json!({"clientCertificateData": "a"}), "come together"),
        (json!(null), "no status"),
        (json!({"token": "t", "expirationTimestamp": "soon"}), "printed no usable ExecCredential"),
    ] {
        prints(&home, &status);
        let error = failure(&client).await;
        assert!(error.contains(part), "{error}");
    }
    prints(&home, &json!({"token": "t"}));
    assert_eq!(get(&client, "/").await, 200);
}

/// A plug-in may print a bare token, or JSON in an unknown form.
#[tokio::test]
async fn the_output_of_a_plug_in_is_not_quoted() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = home(&json!({}));
    let client = home.client(&server, &authority, &user(&home)).await;
    let (log, _listening) = Log::listen();
    for (output, part) in [
        ("\"hunter2\"".to_owned(), "wrong type or value (line 1, column 9)"),
        ("hunter2".to_owned(), "no JSON (line 1, column 1)"),
        ("{\n\"token\": \"hunter2".to_owned(), "in the middle (line 2, "),
        (json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "hunter2"}).to_string(), "no ExecC"),
        (
            json!({"status": {"token": "t", "expirationTimestamp": "hunter2"}}).to_string(),
            "wrong type or value",
        ),
        (json!({"status": {"hunter2": 1, "token": ["hunter2"]}}).to_string(), "wrong type or value"),
    ] {
        home.write("credential", &output);
        let (sender, mut reasons) = mpsc::unbounded_channel();
        let run = Watcher::new(client.clone(), "node-1").run(move |event| {
            if let WatchEvent::Restarted { reason, .. } = event {
                sender.send(format!("{reason} {reason:?}")).unwrap();
            }
        });
        let reason = tokio::select! {
            never = run => match never {},
            reason = time::timeout(DEADLINE, reasons.recv()) => reason.unwrap().unwrap(),
        };
        assert!(reason.contains(part) && !reason.contains("hunter2"), "{reason}");
        let reported = log.text();
        assert!(reported.contains(part) && reported.contains("WARN"), "{part}: {reported}");
        assert!(!reported.contains("hunter2"), "{reported}");
    }
}

#[tokio::test]
async fn a_plug_in_does_not_inherit_ambient_capabilities() {
    // The capabilities of this thread. With `NO_ROOT`, root has only its ambient capabilities, too.
    let capability = CapabilitySet::NET_ADMIN;
    let raised = capabilities(None).and_then(|mut sets| {
        sets.inheritable |= capability;
        set_capabilities(None, sets)?;
        configure_capability_in_ambient_set(capability, true)?;
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_ROOT)
    });
    if let Err(error) = raised {
        eprintln!("skipped: this user has no ambient capabilities to give: {error}");
        return;
    }
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = home(&json!({"token": "t"}));
    let client = home.client(&server, &authority, &user(&home)).await;
    assert_eq!(get(&client, "/").await, 200);
    let seen = home.read("capabilities");
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert!(seen.contains(&format!("{set}:\t0000000000000000\n")), "{seen}");
    }
    assert!(capability_is_in_ambient_set(capability).unwrap(), "this thread keeps it");
}

#[tokio::test]
async fn a_plug_in_that_writes_without_end_is_stopped() {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = home(&json!({"token": "t".repeat(2 << 20)}));
    let client = home.client(&server, &authority, &user(&home)).await;
    for _ in ["standard output", "standard error"] {
        let error = failure(&client).await;
        assert!(error.contains("wrote more than 1048576 bytes"), "{error}");
        home.write("verbose", "");
    }
}

#[tokio::test]
async fn a_plug_in_gives_client_certificates() {
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let server = Server::start(authority.server(Some(&clients))).await;
    let leaves = [clients.client(), clients.client()];
    let status = |index: usize| {
        json!({"clientCertificateData": leaves[index].certificate, "clientKeyData": leaves[index].key,
            "expirationTimestamp": "2020-01-01T00:00:00Z"})
    };
    let home = home(&status(0));
    let client = home.client(&server, &authority, &user(&home)).await;
    assert_eq!(get(&client, "/").await, 200);
    prints(&home, &status(1));
    assert_eq!(get(&client, "/").await, 200);
    let used: Vec<Vec<u8>> =
        server.requests().into_iter().filter_map(|request| request.certificate).collect();
    assert_eq!(used, leaves.map(|leaf| leaf.der().to_vec()));
}
