//! Chooses the linker options of the binaries. The crates `proxy` and `cli` share this file.

use std::env;
use std::process::Command;

/// The first glibc whose loader reads packed relocations.
const GLIBC: (u32, u32) = (2, 36);
/// The first Rust whose bundled musl reads packed relocations: 1.2.5. The first musl that does is 1.2.4.
const RUST_WITH_MUSL: (u32, u32) = (1, 93);

fn main() {
    println!("cargo::rerun-if-changed=../proxy/build.rs");
    pack_relocations();
    leave_out_unwinding();
}

/// Packs the relative relocations (`DT_RELR`) if the loader can read them. The binary has tens of thousands of
/// addresses that are only known when it is loaded. The usual relocation table for them is over a MiB long and is
/// read whole at each start. The packed table is a hundredth of that size.
fn pack_relocations() {
    if loader_reads_packed() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Leaves the tables for unwinding out of the static binaries that abort on a panic: a fourteenth of the file. The compiler option
/// `force-unwind-tables=no` is not enough, because the standard library has debug information and is compiled with them.
fn leave_out_unwinding() {
    println!("cargo::rerun-if-changed=../proxy/without-unwinding.ld");
    let is = |variable, value| env::var(variable).is_ok_and(|found| found == value);
    // `CARGO_CFG_PANIC` is that of the target, not of the profile. The profile `release` aborts.
    if is("CARGO_CFG_TARGET_ENV", "musl") && is("PROFILE", "release") {
        let crates = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{crates}/../proxy/without-unwinding.ld");
    }
}

/// Returns true if the target's loader reads packed relocations. With musl, the loader is a part of the binary. With
/// glibc, the answer is only known if the target is the build host: another host's glibc may be older.
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

/// Runs a program and returns the major and minor version that follows `prefix` in its output.
fn version(program: &str, argument: &str, prefix: &str) -> Option<(u32, u32)> {
    let output = Command::new(program).arg(argument).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().strip_prefix(prefix)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
