//! Exec credential plug-ins: programs that print a token or a client certificate.
//!
//! The protocol is `client.authentication.k8s.io` (`v1` and `v1beta1`), used as in client-go
//! (`plugin/pkg/client/auth/exec`): a credential is kept until it expires or the API server answers 401. There is
//! no user to interact with, so `interactiveMode: Always` is refused.

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

/// Maximum time of a run. The requests that wait for it have little more.
const WAIT: Duration = Duration::from_secs(50);

/// Maximum bytes of a plug-in's standard output, and of its standard error. A plug-in that writes more is killed.
/// Certificates and tokens have a few thousand bytes.
const LARGEST: u64 = 1 << 20;

/// Maximum number of characters of a plug-in's standard error in an error message.
const COMPLAINT: usize = 256;

/// The environment variable with the plug-in's input.
const INPUT: &str = "KUBERNETES_EXEC_INFO";

/// Why an exec plug-in gave no credential.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The exec section of the kubeconfig lacks this field.
    #[error("the kubeconfig's exec plug-in has no {0}")]
    Missing(&'static str),
    /// The API version is not one of the supported ones.
    #[error(
        "exec plug-in {command:?}: apiVersion {version:?} is not supported: use client.authentication.k8s.io/v1"
    )]
    Version {
        /// The plug-in.
        command: String,
        /// The API version as configured.
        version: String,
    },
    /// The plug-in needs a terminal.
    #[error(
        "exec plug-in {0:?} has interactiveMode Always, but the proxy has no terminal; set it to IfAvailable or Never"
    )]
    Interactive(String),
    /// The plug-in could not be started.
    #[error("exec plug-in {command:?} cannot be started: {source}{hint}")]
    Start {
        /// The plug-in.
        command: String,
        /// The system's error.
        source: io::Error,
        /// The kubeconfig's `installHint`.
        hint: String,
    },
    /// The plug-in did not end in time.
    #[error("exec plug-in {command:?} did not end within {} s", .wait.as_secs())]
    Late {
        /// The plug-in.
        command: String,
        /// Maximum time of the run.
        wait: Duration,
    },
    /// The plug-in wrote too much.
    #[error("exec plug-in {command:?} wrote more than {} bytes", LARGEST)]
    TooMuch {
        /// The plug-in.
        command: String,
    },
    /// The plug-in ended with a failure.
    #[error("exec plug-in {command:?} failed with {status}: {complaint}")]
    Failed {
        /// The plug-in.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its standard error.
        complaint: String,
    },
    /// The output is not an `ExecCredential` with a token or a certificate.
    #[error("exec plug-in {command:?} printed no usable ExecCredential: {reason}")]
    Output {
        /// The plug-in.
        command: String,
        /// What is wrong with the output, without quoting it.
        reason: String,
    },
}

/// A configured plug-in and its last credential.
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

    /// Returns the credential. Runs the plug-in if there is none or it has expired. Only one run takes place at a
    /// time.
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

    /// Drops this credential, unless a newer one has replaced it.
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

    /// Reads a pipe to its end, up to [`LARGEST`] bytes.
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

/// Starts a plug-in without Portolan's ambient capabilities (`capabilities(7)`), which a system service may have
/// from systemd and every child would inherit. The set belongs to a thread, so each start uses a thread of its own.
async fn spawn(mut command: Command) -> io::Result<Child> {
    let runtime = Handle::current();
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().name("plug-in".to_owned()).spawn(move || {
        let _runtime = runtime.enter();
        let cleared = clear_ambient_capability_set().map_err(io::Error::from);
        // If the receiver is gone, the child is dropped and thereby killed.
        let _ = sender.send(cleared.and_then(|()| command.spawn()));
    })?;
    receiver.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
}

/// Describes what is wrong with the output, and where. Unlike serde's message it does not quote the output, which may
/// be a token.
fn place(error: &serde_json::Error) -> String {
    let fault = match error.classify() {
        Category::Data => "a field has a wrong type or value",
        Category::Syntax => "this is no JSON",
        Category::Eof => "it ends in the middle",
        Category::Io => "it cannot be read",
    };
    format!("{fault} (line {}, column {})", error.line(), error.column())
}
