//! How the binary is linked.

use std::env;
use std::process::Command;

/// The first glibc whose loader reads packed relocations.
const GLIBC: (u32, u32) = (2, 36);
/// The first Rust that brings a musl which reads them (1.2.5; 1.2.4 was the first).
const RUST_WITH_MUSL: (u32, u32) = (1, 93);

/// Tens of thousands of places hold an address that is known only when the program is loaded. The usual table of them
/// is over a MiB long and read whole at each start; packed (`DT_RELR`) it is a hundredth of that.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if loader_reads_packed() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// With musl the loader is a part of the binary. A glibc that is not this machine's may be older.
fn loader_reads_packed() -> bool {
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return false;
    }
    match variable("CARGO_CFG_TARGET_ENV").as_str() {
        "musl" => version(&variable("RUSTC"), "--version", "rustc ") >= Some(RUST_WITH_MUSL),
        "gnu" if variable("HOST") == variable("TARGET") => {
            version("getconf", "GNU_LIBC_VERSION", "glibc ") >= Some(GLIBC)
        }
        _ => false,
    }
}

/// The version that a program says after this prefix.
fn version(program: &str, argument: &str, prefix: &str) -> Option<(u32, u32)> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().strip_prefix(prefix)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
