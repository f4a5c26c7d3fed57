//! The web page that shows the documents: one file without other files.
//!
//! It asks for the documents beside it (`state`, `services`, `rates`) and draws them. It writes everything from a document as text,
//! never as HTML, and its [`POLICY`] lets the browser run and load nothing else.

/// The page.
pub const HTML: &str = include_str!("page.html");

/// What the browser may load and run, as the value of `Content-Security-Policy`: the one script and the one style of the
/// page, by their SHA-256 hashes, and documents of the same server. A test says what to write after a change of the page.
pub const POLICY: &str = "default-src 'none'; \
    script-src 'sha256-x3WqGjc086+60pPeOO2b4EXKoPp5xhmcm7fIxOBf8zo='; \
    style-src 'sha256-7FITzR0UTnVDZvPlZ1zvV2LAypzIB7arOt0Ba2/aLig='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
