//! Exec credential plug-ins: a program that prints a token or a client certificate.
//!
//! The protocol is `client.authentication.k8s.io` (`v1` and `v1beta1`), read as client-go reads it
//! (`plugin/pkg/client/auth/exec`): what a run gives is kept until it expires or the API server answers 401.
//! No user is there to be asked, so that `interactiveMode: Always` is refused.

use std::process::{ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use k8s_openapi::jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::thread::clear_ambient_capability_set;
use serde::Deserialize;
use serde_json::error::Category;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};
use tokio::time;

use super::credentials::{Credential, Identity, header};

/// A run must end within this time; the requests that wait for it have little more.
const WAIT: Duration = Duration::from_secs(50);

/// A plug-in that writes more bytes than this, to standard output or to standard error, is killed. Certificates
/// and tokens have a few thousand.
const LARGEST: u64 = 1 << 20;

/// So many characters of a plug-in's complaint are passed on.
const COMPLAINT: usize = 256;

/// The variable with the plug-in's input.
const INPUT: &str = "KUBERNETES_EXEC_INFO";

/// Why an exec plug-in gave no credential.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The kubeconfig does not say what to run.
    #[error("the kubeconfig's exec plug-in has no {0}")]
    Missing(&'static str),
    /// Only the stable protocols are spoken.
    #[error(
        "exec plug-in {command:?}: apiVersion {version:?} is not supported: use client.authentication.k8s.io/v1"
    )]
    Version {
        /// The plug-in.
        command: String,
        /// As configured.
        version: String,
    },
    /// The plug-in wants a terminal.
    #[error("exec plug-in {0:?} has interactiveMode Always, but nobody is there to ask")]
    Interactive(String),
    /// It could not be started.
    #[error("exec plug-in {command:?} cannot be started: {source}{hint}")]
    Start {
        /// The plug-in.
        command: String,
        /// What the system says.
        source: io::Error,
        /// The kubeconfig's `installHint`.
        hint: String,
    },
    /// It did not end in time.
    #[error("exec plug-in {command:?} did not end within {} s", .wait.as_secs())]
    Late {
        /// The plug-in.
        command: String,
        /// How long it was waited for.
        wait: Duration,
    },
    /// It prints without end.
    #[error("exec plug-in {command:?} wrote more than {} bytes", LARGEST)]
    TooMuch {
        /// The plug-in.
        command: String,
    },
    /// It said no.
    #[error("exec plug-in {command:?} failed with {status}: {complaint}")]
    Failed {
        /// The plug-in.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote to standard error.
        complaint: String,
    },
    /// What it printed is no `ExecCredential` with a token or a certificate.
    #[error("exec plug-in {command:?} printed no usable ExecCredential: {reason}")]
    Output {
        /// The plug-in.
        command: String,
        /// What is wrong with it, without a word of it.
        reason: String,
    },
}

/// A configured plug-in and what it last gave.
pub(super) struct Plugin {
    config: ExecConfig,
    command: String,
    version: String,
    held: Mutex<Option<Held>>,
}

struct Held {
    credential: Credential,
    expires: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Printed {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    pub(super) fn new(config: ExecConfig) -> Result<Self, ExecError> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let command = given(&config.command).ok_or(ExecError::Missing("command"))?;
        let version = given(&config.api_version).ok_or(ExecError::Missing("apiVersion"))?;
        let known = ["v1", "v1beta1"].map(|version| format!("client.authentication.k8s.io/{version}"));
        if !known.contains(&version) {
            return Err(ExecError::Version { command, version });
        }
        if config.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(ExecError::Interactive(command));
        }
        Ok(Self { config, command, version, held: Mutex::new(None) })
    }

    /// The credential, from a new run if there is none or it has expired. One run at a time.
    pub(super) async fn current(&self) -> Result<Credential, ExecError> {
        let mut held = self.held.lock().await;
        match &*held {
            Some(held) if held.expires.is_none_or(|expires| Timestamp::now() < expires) => {
                Ok(held.credential.clone())
            }
            _ => {
                let new = self.run().await?;
                Ok(held.insert(new).credential.clone())
            }
        }
    }

    /// Forgets this credential, unless there is a newer one already.
    pub(super) async fn forget(&self, refused: &Credential) {
        let mut held = self.held.lock().await;
        if held.as_ref().is_some_and(|held| held.credential == *refused) {
            *held = None;
        }
    }

    async fn run(&self) -> Result<Held, ExecError> {
        let output = time::timeout(WAIT, self.output()).await;
        let output = output.map_err(|_| ExecError::Late { command: self.command.clone(), wait: WAIT })??;
        if !output.status.success() {
            return Err(self.failed(&output));
        }
        self.read(&output.stdout)
    }

    async fn output(&self) -> Result<Output, ExecError> {
        let mut child = spawn(self.command()).await.map_err(|source| self.not_started(source))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = tokio::try_join!(self.all_of(stdout), self.all_of(stderr))?;
        let status = child.wait().await.map_err(|source| self.not_started(source))?;
        Ok(Output { status, stdout, stderr })
    }

    /// All that comes out of a pipe, if that is not too much.
    async fn all_of(&self, pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ExecError> {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let mut pipe = pipe.take(LARGEST.saturating_add(1));
            pipe.read_to_end(&mut bytes).await.map_err(|source| self.not_started(source))?;
        }
        if bytes.len() as u64 > LARGEST {
            return Err(ExecError::TooMuch { command: self.command.clone() });
        }
        Ok(bytes)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.args(self.config.args.iter().flatten());
        for variable in self.config.env.iter().flatten() {
            if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                command.env(name, value);
            }
        }
        command.env(INPUT, self.input());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    fn input(&self) -> String {
        let mut spec = json!({"interactive": false});
        if let (Some(spec), Some(cluster)) = (spec.as_object_mut(), &self.config.cluster) {
            spec.insert("cluster".to_owned(), json!(cluster));
        }
        json!({"kind": "ExecCredential", "apiVersion": self.version, "spec": spec}).to_string()
    }

    fn not_started(&self, source: io::Error) -> ExecError {
        let hint = self.config.install_hint.as_deref().unwrap_or_default().trim();
        let hint = if hint.is_empty() { String::new() } else { format!("; {hint}") };
        ExecError::Start { command: self.command.clone(), source, hint }
    }

    fn failed(&self, output: &Output) -> ExecError {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim();
        let skipped = text.chars().count().saturating_sub(COMPLAINT);
        ExecError::Failed {
            command: self.command.clone(),
            status: output.status,
            complaint: text.chars().skip(skipped).collect(),
        }
    }

    fn read(&self, output: &[u8]) -> Result<Held, ExecError> {
        let fault = |reason: String| ExecError::Output { command: self.command.clone(), reason };
        let printed: Printed = serde_json::from_slice(output).map_err(|error| fault(place(&error)))?;
        if printed.kind != "ExecCredential" || printed.api_version != self.version {
            return Err(fault(format!("it is no ExecCredential of {}", self.version)));
        }
        let Status { expiration_timestamp: expires, token, client_certificate_data, client_key_data } =
            printed.status.ok_or_else(|| fault("it has no status".to_owned()))?;
        let token = token.filter(|token| !token.is_empty());
        let authorization = token.map(|token| header("Bearer", token.trim(), "token")).transpose();
        let authorization = authorization.map_err(|error| fault(error.to_string()))?;
        let identity = match (client_certificate_data, client_key_data) {
            (Some(certificate), Some(key)) => Some(Arc::new(Identity { certificate, key })),
            (None, None) => None,
            _ => return Err(fault("a client certificate and its key come together".to_owned())),
        };
        if authorization.is_none() && identity.is_none() {
            return Err(fault("it has neither a token nor a client certificate".to_owned()));
        }
        Ok(Held { credential: Credential { authorization, identity }, expires })
    }
}

/// Starts a plug-in with none of our ambient capabilities (`capabilities(7)`), which a system service may have
/// from systemd and every child would inherit. The set belongs to a thread: this one lives for one start.
async fn spawn(mut command: Command) -> io::Result<Child> {
    let runtime = Handle::current();
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().name("plug-in".to_owned()).spawn(move || {
        let _runtime = runtime.enter();
        let cleared = clear_ambient_capability_set().map_err(io::Error::from);
        // A child that nobody waits for any more is killed.
        let _ = sender.send(cleared.and_then(|()| command.spawn()));
    })?;
    receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
}

/// Where the output is wrong, and in what sense. What stands there may be the token: it is not told, as serde
/// would.
fn place(error: &serde_json::Error) -> String {
    let fault = match error.classify() {
        Category::Data => "a field has a wrong type or value",
        Category::Syntax => "this is no JSON",
        Category::Eof => "it ends in the middle",
        Category::Io => "it cannot be read",
    };
    format!("{fault} (line {}, column {})", error.line(), error.column())
}
