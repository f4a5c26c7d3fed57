//! An etcd server for one test, on free loopback ports, with its data in a temporary folder. It is killed when it is
//! dropped, or when this process ends.

use std::{
    env,
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// The tools that the Makefile provides: names separated by spaces.
const PROVIDED: &str = "PORTOLAN_TEST_TOOLS";
const DEADLINE: Duration = Duration::from_secs(120);
/// The folder of etcd's data, in its temporary folder.
pub const DATA: &str = "data";

/// A running server.
#[derive(Debug)]
pub struct Etcd {
    dir: TempDir,
    program: PathBuf,
    name: &'static str,
    client: u16,
    peer: u16,
    options: Vec<String>,
    /// A program that runs etcd, with its arguments. Empty if etcd is started directly.
    runner: Vec<String>,
    scheme: &'static str,
    /// All members of the cluster.
    cluster: String,
    child: Option<Child>,
    /// Bytes that the log had when the server was started last.
    logged: usize,
}

impl Etcd {
    /// Starts a server if etcd is installed. Panics if it is not and the Makefile provides it.
    pub fn start() -> Option<Self> {
        Self::start_with("http", &[])
    }

    /// Starts a server with more options. `scheme` is that of its client port.
    pub fn start_with(scheme: &'static str, options: &[String]) -> Option<Self> {
        let program = program("etcd")?;
        // Another process may take a free port before etcd does.
        for _ in 0..5 {
            let mut etcd = Self::new(&program, "default", scheme, options);
            etcd.spawn(&etcd.member());
            if etcd.is_ready() {
                return Some(etcd);
            }
        }
        panic!("etcd does not start")
    }

    /// Starts three members of one cluster.
    pub fn start_three() -> Option<[Self; 3]> {
        let program = program("etcd")?;
        for _ in 0..5 {
            let mut three = ["one", "two", "three"].map(|name| Self::new(&program, name, "http", &[]));
            let cluster = three.each_ref().map(Self::member).join(",");
            for etcd in &mut three {
                etcd.spawn(&cluster);
            }
            if three.iter_mut().all(Self::is_ready) {
                return Some(three);
            }
        }
        panic!("etcd does not start")
    }

    /// Starts a server on the data that a folder has in [`DATA`], if any. `runner` is a program that runs etcd, with its
    /// arguments; it may be empty. Panics if etcd does not start on the data.
    pub fn start_on(dir: TempDir, runner: &[String], options: &[String]) -> Option<Self> {
        let mut etcd = Self::new(&program("etcd")?, "default", "http", options);
        (etcd.dir, etcd.runner) = (dir, runner.to_vec());
        for _ in 0..5 {
            etcd.spawn(&etcd.member());
            if etcd.is_ready() {
                return Some(etcd);
            }
            assert!(etcd.log().contains("address already in use"), "etcd does not start");
            [etcd.client, etcd.peer] = free_ports();
        }
        panic!("etcd finds no free port")
    }

    fn new(program: &Path, name: &'static str, scheme: &'static str, options: &[String]) -> Self {
        let [client, peer] = free_ports();
        let (dir, program, options) = (tempfile::tempdir().unwrap(), program.to_owned(), options.to_vec());
        let (runner, cluster) = (Vec::new(), String::new());
        Self { dir, program, name, client, peer, options, runner, scheme, cluster, child: None, logged: 0 }
    }

    /// Returns the temporary folder.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the server, and returns its temporary folder.
    pub fn into_folder(mut self) -> TempDir {
        self.kill();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    /// Returns the endpoint for clients.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.client)
    }

    /// Returns the port of [`Etcd::endpoint`].
    pub fn port(&self) -> u16 {
        self.client
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Calls etcd's JSON gateway, for calls that the store does not need itself.
    pub fn call(&self, path: &str, body: &str) {
        self.call_as("", path, body);
    }

    /// Does the same with a token of etcd's authentication.
    pub fn call_as(&self, token: &str, path: &str, body: &str) {
        let (head, answer) = self.ask_as(token, path, body);
        assert!(head.contains(" 200 "), "{path}: {head}\n{answer}");
    }

    /// Returns the head and the body of an answer of etcd's JSON gateway.
    pub fn ask(&self, path: &str, body: &str) -> (String, String) {
        self.ask_as("", path, body)
    }

    /// Logs in. Returns the token.
    pub fn token(&self, name: &str, password: &str) -> String {
        let body = format!(r#"{{"name": "{name}", "password": "{password}"}}"#);
        let answer = self.ask("/v3/auth/authenticate", &body).1;
        answer.rsplit("\"token\":\"").next().unwrap().split('"').next().unwrap().to_owned()
    }

    fn ask_as(&self, token: &str, path: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client)).unwrap();
        let length = body.len();
        let token = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        write!(stream, "POST {path} HTTP/1.0\r\n{token}Content-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Kills the server as a power loss would, except that the kernel keeps what was written.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the server again with the same data.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn(&self.cluster.clone());
        assert!(self.is_ready(), "etcd does not start again");
    }

    /// Starts the server again without any data.
    pub fn restart_empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.dir.path().join(DATA)).unwrap();
        self.restart();
    }

    fn spawn(&mut self, cluster: &str) {
        cluster.clone_into(&mut self.cluster);
        let log = File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        self.logged = log.metadata().unwrap().len().try_into().unwrap();
        let (clients, peers) = (self.endpoint(), self.peers());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.runner).arg(&self.program);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--name", self.name, "--initial-cluster", cluster]);
        command.arg("--data-dir").arg(self.dir.path().join(DATA)).args(&self.options);
        // Debian also builds etcd for architectures that upstream does not test.
        command.env("ETCD_UNSUPPORTED_ARCH", env::consts::ARCH.replace("aarch64", "arm64"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(spawn_for_good(command));
    }

    fn peers(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }

    fn member(&self) -> String {
        format!("{}={}", self.name, self.peers())
    }

    /// Waits until the server answers. Returns false if its process has ended.
    fn is_ready(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < DEADLINE {
            if self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                eprintln!("etcd ended:\n{}", self.log());
                return false;
            }
            if if self.scheme == "https" { self.accepts() } else { self.is_healthy() } {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("etcd is not ready:\n{}", self.log())
    }

    /// Returns what the server has logged since it was started last.
    fn log(&self) -> String {
        let log = std::fs::read(self.dir.path().join("log")).unwrap();
        String::from_utf8_lossy(&log[self.logged..]).into_owned()
    }

    fn accepts(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.client)).is_ok()
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.client)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let request = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.contains("\"true\"")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of a program if it is installed. Panics if it is not and the Makefile provides it.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        let provided = env::var(PROVIDED).unwrap_or_default();
        let promised = provided.split(' ').any(|tool| tool == name);
        assert!(!promised, "{name} is not there, although {PROVIDED} names it");
        eprintln!("{name} is not installed: left out");
    }
    found
}

/// The kernel sends the death signal when the thread that started the program ends, and a test's thread ends with the
/// test.
fn spawn_for_good(mut command: Command) -> Child {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        send.send(command.spawn().unwrap()).unwrap();
        loop {
            thread::park();
        }
    });
    receive.recv().unwrap()
}

/// Returns two free ports. By default, the kernel gives none of this range out, so they are still free when a server is started
/// again.
fn free_ports() -> [u16; 2] {
    let free = |()| {
        let mut ports = std::iter::repeat_with(|| fastrand::u16(20_000..32_000));
        ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap()
    };
    [(); 2].map(free).map(|listener| listener.local_addr().unwrap().port())
}
