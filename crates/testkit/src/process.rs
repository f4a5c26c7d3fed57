//! A Portolan process under test: started in a namespace, observed, and always ended.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually_some;
use crate::{Namespace, TestkitError};

/// A running process and its output. It is killed when dropped, and by the kernel if this process dies first.
#[derive(Debug)]
pub struct PortolanProcess {
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl PortolanProcess {
    /// Starts `binary` (a test passes `env!("CARGO_BIN_EXE_portolan")`) inside the namespace. A proxy has no control
    /// socket unless the arguments name one: all namespaces share one `/run`.
    pub fn start(namespace: &Namespace, binary: &Path, arguments: &[&str]) -> Result<Self, TestkitError> {
        Self::start_with_environment(namespace, binary, arguments, &[])
    }

    /// Starts `binary` like [`PortolanProcess::start`], with additional environment variables.
    pub fn start_with_environment(
        namespace: &Namespace,
        binary: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, TestkitError> {
        let mut command = namespace.command(binary);
        for (name, value) in environment {
            command.env(name, value);
        }
        command
            .args(arguments)
            .args(without_socket(arguments))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let output = Arc::new(Mutex::new(String::new()));
        let stdout = child.stdout.take().map(|pipe| collect(pipe, output.clone()));
        let stderr = child.stderr.take().map(|pipe| collect(pipe, output.clone()));
        Ok(Self { child, output, readers: stdout.into_iter().chain(stderr).collect(), status: None })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output and standard error.
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // The only error is that the child has been waited for, which only this function does.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits until `condition` holds. If the process ends before that, fails at once, with its output.
    pub fn wait_until(
        &mut self,
        within: Duration,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), TestkitError> {
        let ready =
            eventually_some(within, what, || if condition() { Some(None) } else { self.ended().map(Some) })?;
        let Some(status) = ready else { return Ok(()) };
        self.drain();
        // Its last lines may be what was waited for.
        if condition() {
            return Ok(());
        }
        Err(TestkitError::ProcessEnded { what: what.to_owned(), status, stderr: self.output() })
    }

    /// Waits until the output contains `text`.
    pub fn wait_for_output(&mut self, within: Duration, text: &str) -> Result<(), TestkitError> {
        let output = self.output.clone();
        let seen = move || output.lock().unwrap_or_else(PoisonError::into_inner).contains(text);
        self.wait_until(within, &format!("the output {text:?}"), seen)
    }

    /// Sends a signal if the process still runs.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (None, Some(pid)) = (self.status, pid) {
            // The process may have ended. Its exit status is read later.
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks the process to end (SIGTERM) and waits for it.
    pub fn terminate(&mut self, within: Duration) -> Result<ExitStatus, TestkitError> {
        self.signal(Signal::TERM);
        self.wait_for_end(within)
    }

    /// Kills the process (SIGKILL), as a crash would end it.
    pub fn kill(&mut self) -> Result<ExitStatus, TestkitError> {
        self.signal(Signal::KILL);
        self.wait_for_end(Duration::from_secs(60))
    }

    /// Waits for the process to end on its own.
    pub fn wait_for_end(&mut self, within: Duration) -> Result<ExitStatus, TestkitError> {
        let status = eventually_some(within, "the end of the process under test", || self.ended())?;
        self.drain();
        Ok(status)
    }

    /// Returns its maximum resident memory in bytes (`VmHWM`, see `proc_pid_status(5)`).
    pub fn resident_high_water(&self) -> Option<u64> {
        memory(self.id(), "VmHWM:")
    }

    /// Returns its current resident memory in bytes (`VmRSS`).
    pub fn resident(&self) -> Option<u64> {
        resident(self.id())
    }

    /// Returns the processor time that it has used, user and system (fields 14 and 15 of `proc_pid_stat(5)`, which
    /// count hundredths of a second on every architecture that Linux reports them on).
    pub fn processor_time(&self) -> Option<Duration> {
        self.hundredths(2)
    }

    /// Returns its processor time and that of the programs that it has run and that have ended (fields 14 to 17).
    pub fn processor_time_with_programs(&self) -> Option<Duration> {
        self.hundredths(4)
    }

    /// Returns the sum of this many fields of `proc_pid_stat(5)`, from the 14th on.
    fn hundredths(&self, count: usize) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        // The second field, a name in parentheses, may contain spaces.
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(count);
        let sum: u64 = fields.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
        Some(Duration::from_millis(sum.saturating_mul(10)))
    }

    /// Waits for the readers after the end of the process, so that the output is complete, at most twenty seconds. A
    /// grandchild may hold the pipes open for longer.
    fn drain(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline && self.readers.iter().any(|reader| !reader.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the current resident memory of a process in bytes (`VmRSS`, see `proc_pid_status(5)`).
pub fn resident(process: u32) -> Option<u64> {
    memory(process, "VmRSS:")
}

fn memory(process: u32, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

impl Drop for PortolanProcess {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // Both fail only for a process that has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if thread::panicking() {
            eprintln!("--- output of the process under test ---\n{}---", self.output());
        }
    }
}

/// Returns the argument for a proxy that is to have no control socket. The subcommand is the first argument, or the one
/// after the path of the program.
fn without_socket(arguments: &[&str]) -> Option<&'static str> {
    let names_one = arguments.iter().any(|argument| argument.starts_with("--control-socket"));
    let subcommand = arguments.iter().position(|argument| *argument == "proxy")?;
    let before = subcommand.checked_sub(1).and_then(|before| arguments.get(before));
    let is_first = before.is_none_or(|program| program.starts_with('/'));
    (is_first && !names_one).then_some("--control-socket=")
}

fn collect(pipe: impl Read + Send + 'static, output: Arc<Mutex<String>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            line.clear();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_no_control_socket_unless_it_is_named() {
        let none = Some("--control-socket=");
        assert_eq!(without_socket(&["proxy", "--config", "/c"]), none);
        assert_eq!(without_socket(&["--clear-groups", "/bin/portolan", "proxy"]), none);
        assert_eq!(without_socket(&["proxy", "--control-socket=/s"]), None);
        assert_eq!(without_socket(&["serve", "kubeconfig", "--role", "proxy"]), None);
        assert_eq!(without_socket(&["serve"]), None);
    }
}
