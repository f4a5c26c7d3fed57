//! A network namespace, held by a thread and a file descriptor, and the work that runs inside it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::{TestkitError, eventually};

/// A network namespace without a name in the file system. It ends with its last clone, and with the processes and
/// sockets inside it.
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    fd: OwnedFd,
    id: u64,
    /// The thread that starts child processes. The kernel kills them when it ends.
    keeper: mpsc::Sender<Job>,
    /// The folder in which an agent notes the former values of the namespace's kernel settings. The agent creates it.
    state: PathBuf,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Most namespaces have no agent, and no folder.
        let _ = fs::remove_dir_all(&self.state);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The shell command of a child after it has requested a kill signal on its parent's death. `$0` is the parent's
/// process ID. If the parent died before the request, `$PPID` differs and the program is not started.
const START: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
/// Maximum time from the start of a child to the start of its own program.
const START_WITHIN: Duration = Duration::from_secs(30);

impl Namespace {
    /// Creates an empty namespace. `name` is only used in messages.
    pub fn new(name: &str) -> Result<Self, TestkitError> {
        let (keeper, jobs) = mpsc::channel::<Job>();
        let (opened, result) = mpsc::channel();
        spawn(&format!("ns-{name}"), name, move || {
            let ready = opened.send(create_for_this_thread()).is_ok();
            drop(opened);
            if ready {
                for job in jobs {
                    job();
                }
            }
        })?;
        let fail = |source| creation_error(name, source);
        let fd = result.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe.into())).map_err(fail)?;
        let id = fd.metadata().map_err(fail)?.ino();
        let state = std::env::temp_dir().join(format!("portolan-state-{}-{id}", std::process::id()));
        Ok(Self { inner: Arc::new(Inner { name: name.to_owned(), fd: fd.into(), id, keeper, state }) })
    }

    /// Returns the name given at creation.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the inode number of the namespace. It is unique while the namespace lives, and reused afterwards.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns a path with which any program of the same user can open the namespace while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.inner.fd.as_raw_fd())
    }

    /// Returns the folder in which an agent notes the former values of the namespace's kernel settings, in the place of
    /// the host's. It exists once an agent has started.
    pub fn state(&self) -> &Path {
        &self.inner.state
    }

    /// Runs `work` on a thread of its own inside the namespace and returns its result.
    ///
    /// Sockets that `work` opens belong to the namespace, wherever they are used later. A panic of `work`
    /// continues in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TestkitError> {
        thread::scope(|scope| {
            let handle = thread::Builder::new()
                .name(format!("in-{}", self.name()))
                .spawn_scoped(scope, || self.enter().map(|()| work()))
                .map_err(|source| self.error("start a thread", source))?;
            handle.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts `work` on a named thread inside the namespace and returns at once.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, TestkitError>>, TestkitError> {
        let namespace = self.clone();
        spawn(thread_name, self.name(), move || namespace.enter().map(|()| work()))
    }

    /// Returns a command that runs inside the namespace. The kernel kills it at the latest when the namespace value
    /// is dropped or this process ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> NamespaceCommand {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "sh", "-c", START, &std::process::id().to_string()]);
        command.arg(program.as_ref()).env("PORTOLAN_STATE_DIRS", self.state());
        let program = program.as_ref().to_string_lossy().into_owned();
        NamespaceCommand { namespace: self.clone(), program, command }
    }

    /// Runs a program until it ends and returns its standard output. If it fails, the error contains its standard
    /// error.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String, TestkitError> {
        self.output_with_input(program, arguments, "")
    }

    /// Runs a program like [`Namespace::output`], with `input` on its standard input.
    pub fn output_with_input(
        &self,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, TestkitError> {
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends early closes the pipe. Its exit status tells why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|source| command.error(source))?;
        command.require_success(arguments, &output)
    }

    /// Runs lines of iproute2 commands (without the leading `ip`) in one process.
    pub fn ip(&self, lines: &str) -> Result<(), TestkitError> {
        self.output_with_input("ip", &["-batch", "-"], lines).map(drop)
    }

    /// Writes kernel settings below /proc/sys, given as (`net/ipv4/ip_forward`, `1`). Skips a setting that this
    /// kernel does not have, or that only the initial namespace has.
    pub fn write_sysctls(&self, settings: &[(String, &str)]) -> Result<(), TestkitError> {
        self.run(|| settings.iter().try_for_each(|(key, value)| self.write_sysctl(key, value)))?
    }

    fn write_sysctl(&self, key: &str, value: &str) -> Result<(), TestkitError> {
        match fs::write(Path::new("/proc/sys").join(key), value) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(TestkitError::Sysctl { key: key.to_owned(), namespace: self.name().to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    fn enter(&self) -> Result<(), TestkitError> {
        move_into_link_name_space(self.inner.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| self.error("enter", errno.into()))
    }

    fn error(&self, action: &'static str, source: io::Error) -> TestkitError {
        TestkitError::Namespace { namespace: self.name().to_owned(), action, source }
    }
}

/// A command of a [`Namespace`], configured like a [`Command`] and started inside the namespace.
#[derive(Debug)]
pub struct NamespaceCommand {
    namespace: Namespace,
    program: String,
    command: Command,
}

impl NamespaceCommand {
    /// Adds arguments.
    pub fn args(&mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> &mut Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(name, value);
        self
    }

    /// Sets its standard input; inherited by default.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.command.stdin(stdin);
        self
    }

    /// Sets its standard output; inherited by default.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.command.stdout(stdout);
        self
    }

    /// Sets its standard error; inherited by default.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.command.stderr(stderr);
        self
    }

    /// Starts the program. The kernel kills it when the namespace value is dropped or this process ends.
    pub fn spawn(&mut self) -> Result<Child, TestkitError> {
        let command = std::mem::replace(&mut self.command, Command::new("false"));
        let (sender, receiver) = mpsc::channel();
        let job: Job = Box::new(move || {
            let mut command = command;
            let child = command.spawn();
            if let Ok(child) = &child {
                wait_for_own_program(child.id());
            }
            // The receiver waits below, unless its thread died. Then the child is not needed.
            let _ = sender.send((command, child));
        });
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.namespace.inner.keeper.send(job).map_err(|_| self.error(gone()))?;
        let (command, child) = receiver.recv().map_err(|_| self.error(gone()))?;
        self.command = command;
        child.map_err(|source| self.error(source))
    }

    fn require_success(&self, arguments: &[&str], output: &Output) -> Result<String, TestkitError> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(TestkitError::Failed {
            program: format!("{} {}", self.program, arguments.join(" ")),
            namespace: self.namespace.name().to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    fn error(&self, source: io::Error) -> TestkitError {
        let (program, namespace) = (self.program.clone(), self.namespace.name().to_owned());
        TestkitError::Start { program, namespace, source }
    }
}

/// Returns true if this process may create network namespaces.
pub fn can_create_namespaces() -> bool {
    Namespace::new("permission-check").is_ok()
}

/// Returns a command that runs `program` as root of a user namespace of its own, for callers without root.
pub fn user_namespace_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--kill-child", "--"]).arg(program);
    command
}

fn spawn<T: Send + 'static>(
    thread_name: &str,
    namespace: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, TestkitError> {
    thread::Builder::new().name(thread_name.to_owned()).spawn(work).map_err(|source| {
        TestkitError::Namespace { namespace: namespace.to_owned(), action: "start a thread", source }
    })
}

/// Waits until the child runs its own program. Until then this thread must not end: a child that has not yet
/// requested the kill signal would outlive it. After [`START_WITHIN`], the child is no longer waited for.
fn wait_for_own_program(child: u32) {
    let ended = || fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    let own = || match fs::read(format!("/proc/{child}/cmdline")) {
        // Empty in the middle of an exec, and after the end.
        Ok(line) if line.is_empty() => ended(),
        Ok(line) => !line.split(|byte| *byte == 0).any(|argument| argument == START.as_bytes()),
        Err(_) => true,
    };
    let _ = eventually(START_WITHIN, "the start of a program", own);
}

#[expect(
    deprecated,
    reason = "rustix marks the safe call deprecated for the sake of CLONE_FILES only; with CLONE_NEWNET \
              it moves nothing but the calling thread"
)]
fn create_for_this_thread() -> io::Result<File> {
    rustix::thread::unshare(UnshareFlags::NEWNET)?;
    File::open("/proc/thread-self/ns/net")
}

fn creation_error(name: &str, source: io::Error) -> TestkitError {
    let namespace = name.to_owned();
    let errno = Errno::from_io_error(&source);
    if matches!(errno, Some(Errno::PERM | Errno::NOSPC | Errno::USERS)) {
        return TestkitError::NotPermitted { namespace, source };
    }
    TestkitError::Namespace { namespace, action: "create", source }
}
