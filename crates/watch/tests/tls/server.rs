//! An API server over TLS whose certificates, tokens and answers a test changes at run time.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Maximum time for any condition of these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// How a request is answered.
pub(crate) enum Answer {
    /// Status, further header lines, body.
    Say(u16, &'static str, String),
    /// A 200 with a chunk for each text as it comes. The end of the texts ends the body.
    Stream(mpsc::UnboundedReceiver<String>),
    /// A 200 with one chunk, after which the connection breaks.
    Cut(String),
    /// No answer.
    Hang,
}

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// All header lines, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Number of the connection, counted from 0.
    pub(crate) connection: usize,
    /// The client's certificate.
    pub(crate) certificate: Option<Vec<u8>>,
    pub(crate) at: Instant,
    /// Status code of the answer; 0 if there was none.
    pub(crate) code: u16,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct State {
    pub(crate) tls: Arc<ServerConfig>,
    /// The accepted token; other tokens get a 401. `None` accepts all.
    pub(crate) token: Option<String>,
    /// Answers by path. When none is left, paths of the API get no answer and others a 200.
    pub(crate) answers: HashMap<&'static str, VecDeque<Answer>>,
    pub(crate) requests: Vec<Request>,
    /// Called at each 401.
    pub(crate) on_unauthorized: Option<Box<dyn FnMut() + Send>>,
    connections: usize,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) async fn start(tls: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State {
            tls,
            token: None,
            answers: HashMap::new(),
            requests: Vec::new(),
            on_unauthorized: None,
            connections: 0,
        };
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        let accepting = server.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(accepting.clone().serve(socket));
            }
        });
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn answer(&self, path: &'static str, answers: impl IntoIterator<Item = Answer>) {
        self.state().answers.entry(path).or_default().extend(answers);
    }

    /// Adds an answer whose body the test sends in pieces.
    pub(crate) fn stream(&self, path: &'static str) -> mpsc::UnboundedSender<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.answer(path, [Answer::Stream(receiver)]);
        sender
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    pub(crate) fn requests_for(&self, path: &str) -> Vec<Request> {
        let asked = |request: &Request| request.line.split(['?', ' ']).nth(1) == Some(path);
        self.state().requests.iter().filter(|request| asked(request)).cloned().collect()
    }

    async fn serve(self, socket: TcpStream) {
        socket.set_nodelay(true).unwrap();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.state().tls));
        let Ok(mut stream) = acceptor.accept(socket).await else { return };
        let certificate = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
        let connection = {
            let mut state = self.state();
            state.connections += 1;
            state.connections - 1
        };
        while let Some((line, headers)) = head(&mut stream).await {
            let request = Request {
                line,
                headers,
                connection,
                certificate: certificate.clone(),
                at: Instant::now(),
                code: 0,
            };
            match self.choose(request) {
                Answer::Say(code, headers, body) => {
                    let length = body.len();
                    let text =
                        format!("HTTP/1.1 {code} Status\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
                    stream.write_all(text.as_bytes()).await.unwrap();
                }
                Answer::Stream(mut texts) => {
                    stream.write_all(CHUNKED.as_bytes()).await.unwrap();
                    while let Some(text) = texts.recv().await {
                        if stream.write_all(chunk(&text).as_bytes()).await.is_err() {
                            return;
                        }
                    }
                    stream.write_all(b"0\r\n\r\n").await.unwrap();
                }
                Answer::Cut(text) => {
                    stream.write_all((CHUNKED.to_owned() + &chunk(&text)).as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                    return;
                }
                Answer::Hang => std::future::pending().await,
            }
        }
    }

    fn choose(&self, mut request: Request) -> Answer {
        let mut state = self.state();
        let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
        let path = request.line.split(['?', ' ']).nth(1).unwrap();
        let answer = if wanted.is_some() && wanted.as_deref() != request.header("authorization") {
            if let Some(hook) = &mut state.on_unauthorized {
                hook();
            }
            Answer::Say(401, "", r#"{"kind":"Status","code":401}"#.to_owned())
        } else {
            let next = state.answers.get_mut(path).and_then(VecDeque::pop_front);
            let of_api = path.starts_with("/api");
            let other = if of_api { Answer::Hang } else { Answer::Say(200, "", "{}".to_owned()) };
            next.unwrap_or(other)
        };
        request.code = match &answer {
            Answer::Say(code, ..) => *code,
            Answer::Hang => 0,
            Answer::Stream(_) | Answer::Cut(_) => 200,
        };
        state.requests.push(request);
        answer
    }
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Reads the request line and headers, or returns `None` if the connection ends.
pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<(String, String)>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    });
    Some((line, headers.collect()))
}
