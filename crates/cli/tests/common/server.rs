//! The program whose subcommand `serve` the tests run.

/// Names another server, such as a release build.
const SERVER: &str = "PORTOLAN_SERVER";

/// Returns the path of the server: that of `PORTOLAN_SERVER`, or else this build's.
pub(crate) fn program() -> String {
    let named = std::env::var_os(SERVER);
    named.map_or_else(|| env!("CARGO_BIN_EXE_portolan").to_owned(), |path| path.into_string().unwrap())
}
