//! A headless Chromium, asked over its debugging pipe: messages of JSON, each with a zero byte behind it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program, from Debian's package of this name.
const PROGRAM: &str = "chromium-headless-shell";
/// The tools that the Makefile provides: names separated by spaces.
const PROVIDED: &str = "PORTOLAN_TEST_TOOLS";

/// A browser with one page. It ends when this is dropped.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Value,
    last: u64,
    /// Exceptions, refusals of the policy and other errors that the browser reported.
    pub(crate) errors: Vec<String>,
    _folder: TempDir,
}

impl Browser {
    /// Starts the browser. `None` if this machine has none. Fails if the Makefile provides it and it is missing.
    pub(crate) fn start() -> Option<Self> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found: Option<PathBuf> =
            std::env::split_paths(&folders).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
        let Some(program) = found else {
            let provided = std::env::var(PROVIDED).unwrap_or_default();
            assert!(!provided.split(' ').any(|tool| tool == PROGRAM), "{PROGRAM} is not there");
            eprintln!("{PROGRAM} is not installed: left out; `make page-test` installs it");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // The browser reads from file descriptor 3 and writes to 4.
        let script = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"";
        let mut process = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(program)
            .args([
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-proxy-server",
            ])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let (session, errors) = (Value::Null, Vec::new());
        let mut browser = Self { process, to, from, session, last: 0, errors, _folder: folder };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", target)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Sends a command and waits for its result. Other messages before it are events.
    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method });
        message["params"] = parameters;
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let message: Value = serde_json::from_slice(&bytes).unwrap();
            if message["id"] == self.last {
                let error = &message["error"];
                return if error.is_null() { Ok(message["result"].clone()) } else { Err(error.clone()) };
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.errors.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Opens an address in the size of a screen.
    pub(crate) fn open(&mut self, address: &str, (width, height): (u32, u32)) {
        self.resize((width, height));
        self.call("Page.navigate", json!({ "url": address }));
    }

    pub(crate) fn resize(&mut self, (width, height): (u32, u32)) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Sets `light` or `dark`.
    pub(crate) fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Returns the value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let waiting = format!(
            "new Promise(done => {{ const end = Date.now() + 60000; (function look() {{
                let is; try {{ is = {expression}; }} catch {{ is = false; }}
                if (is || Date.now() > end) done(Boolean(is)); else setTimeout(look, 20);
            }})(); }})"
        );
        let parameters = json!({ "expression": waiting, "returnByValue": true, "awaitPromise": true });
        // The evaluation fails if another page begins meanwhile. The next one is on that page.
        let waited = (0..3).find_map(|_| self.try_call("Runtime.evaluate", parameters.clone()).ok());
        if waited.is_none_or(|waited| waited["result"]["value"] != true) {
            let text = self.value("document.body.innerText");
            panic!("{expression}\nerrors: {:#?}\npage: {}", self.errors, text.as_str().unwrap_or_default());
        }
    }

    /// Presses and releases a key; one of one character writes it.
    pub(crate) fn key(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 => key,
            _ => "",
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowUp" => 38,
            "ArrowDown" => 40,
            "Tab" => 9,
            _ => 0,
        };
        let mut event = json!({ "type": "keyDown", "key": key, "windowsVirtualKeyCode": code });
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event);
        let up = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Writes text where the focus is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Writes a picture of the screen into the folder that the environment names, if it names one.
    pub(crate) fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("PORTOLAN_PICTURES") else { return };
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(Path::new(&folder).join(name), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
