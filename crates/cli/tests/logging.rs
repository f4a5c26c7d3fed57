//! What the binary writes to its log, as scripts that read klog's lines see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::process::Command;

/// An address of the documentation range (RFC 5737): nothing can listen there.
const NOWHERE: &str = "192.0.2.1:8001";

#[test]
fn an_error_is_one_line_of_klog() {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan")).args(["serve", "--listen", NOWHERE]).output();
    let output = output.expect("the binary runs");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let log = String::from_utf8(output.stderr).expect("text");
    let line = log.strip_suffix('\n').expect("a whole line");
    let (header, message) = line.split_once("] ").expect("header and message");
    let words: Vec<&str> = header.split_whitespace().collect();
    let [severity_and_date, time, process, place] = words[..] else { panic!("{header}") };
    assert!(severity_and_date.strip_prefix('E').is_some_and(|date| is_digits(date, 4)), "{header}");
    let (clock, microseconds) = time.split_once('.').expect("a fraction");
    assert!(clock.split(':').all(|part| is_digits(part, 2)) && is_digits(microseconds, 6), "{header}");
    assert!(process.parse::<u32>().is_ok() && header.find(process).is_some_and(|at| at >= 21), "{header}");
    let (file, number) = place.split_once(':').expect("file and line");
    assert!(
        file.strip_suffix(".rs").is_some() && !file.contains('/') && number.parse::<u32>().is_ok(),
        "{header}"
    );
    assert!(message.starts_with("\"--listen: cannot listen on 192.0.2.1:8001: "), "{message}");
}

fn is_digits(text: &str, length: usize) -> bool {
    text.len() == length && text.chars().all(|letter| letter.is_ascii_digit())
}
