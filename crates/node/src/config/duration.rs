//! Durations in Go's spelling: `1h2m3.5s`, `300ms`, `0`.

use std::fmt::Write as _;
use std::time::Duration;

/// Why a text is not a valid duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not in Go's spelling.
    #[error("not a duration; write numbers with units, such as 30s, 1h30m or 250ms")]
    Syntax,
    /// Less than zero.
    #[error("negative; write zero or more")]
    Negative,
    /// More than about 292 years, the limit of a 64-bit count of nanoseconds.
    #[error("longer than 2562047h47m16s")]
    TooLong,
}

/// Parses a duration of zero or more in Go's spelling (`time.ParseDuration`).
///
/// # Errors
/// Another spelling, a negative duration, or one that is too long.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let nanoseconds = if unsigned == "0" { 0 } else { sum_of_parts(unsigned)? };
    match u64::try_from(nanoseconds) {
        Ok(0) => Ok(Duration::ZERO),
        Ok(_) if text.starts_with('-') => Err(DurationError::Negative),
        Ok(nanoseconds) if i64::try_from(nanoseconds).is_ok() => Ok(Duration::from_nanos(nanoseconds)),
        _ => Err(DurationError::TooLong),
    }
}

/// Formats a duration as Go does: `15m0s`, `24h0m0s`, `1.5s`, `300ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut text = String::new();
    let (seconds, nanoseconds) = (duration.as_secs(), u64::from(duration.subsec_nanos()));
    let _ = match (seconds, nanoseconds) {
        (0, 0) => write!(text, "0s"),
        (0, 1..1_000) => write!(text, "{nanoseconds}ns"),
        (0, 1_000..1_000_000) => write!(text, "{}µs", decimal(nanoseconds, 1_000)),
        (0, _) => write!(text, "{}ms", decimal(nanoseconds, 1_000_000)),
        _ => {
            let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
            let rest = decimal(seconds % 60 * 1_000_000_000 + nanoseconds, 1_000_000_000);
            match (hours, minutes) {
                (0, 0) => write!(text, "{rest}s"),
                (0, _) => write!(text, "{minutes}m{rest}s"),
                _ => write!(text, "{hours}h{minutes}m{rest}s"),
            }
        }
    };
    text
}

/// Returns the nanoseconds of a text such as `1h2m3.5s`. Digits of a fraction after the eighteenth are ignored.
fn sum_of_parts(mut text: &str) -> Result<u128, DurationError> {
    let mut total: u128 = 0;
    loop {
        let (whole, rest) = split_while(text, |c| c.is_ascii_digit());
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => split_while(rest, |c| c.is_ascii_digit()),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(DurationError::Syntax);
        }
        let (name, rest) = split_while(rest, |c| c != '.' && !c.is_ascii_digit());
        let unit = unit(name).ok_or(DurationError::Syntax)?;
        total += part(whole, fraction, unit)?;
        if total > u128::from(u64::MAX) {
            return Err(DurationError::TooLong);
        }
        if rest.is_empty() {
            return Ok(total);
        }
        text = rest;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most 18 digits")]
fn part(whole: &str, fraction: &str, unit: u64) -> Result<u128, DurationError> {
    // Nineteen digits of the largest unit are below 2^106. Twenty and more are too long in any unit.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 19 {
        return Err(DurationError::TooLong);
    }
    let number = |digits: &str| digits.bytes().fold(0u128, |n, digit| n * 10 + u128::from(digit - b'0'));
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let scale = 10u128.pow(fraction.len() as u32);
    Ok(number(whole) * u128::from(unit) + number(fraction) * u128::from(unit) / scale)
}

fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        // Go accepts both characters for micro.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn split_while(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Returns `value / unit` without trailing zeros. `unit` is a power of ten.
fn decimal(value: u64, unit: u64) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let table = [
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("0s", Ok(0)),
            ("-0s", Ok(0)),
            ("1h2m3.5s", Ok(3_723_500_000_000)),
            ("300ms", Ok(300_000_000)),
            ("+5s", Ok(5_000_000_000)),
            (".5s", Ok(500_000_000)),
            ("1.s", Ok(1_000_000_000)),
            ("1us1µs1μs7ns", Ok(3_007)),
            ("0.000000001s", Ok(1)),
            ("000000000000000000000001s", Ok(1_000_000_000)),
            ("2562047h47m16s", Ok(9_223_372_036_000_000_000)),
            ("2562048h", Err(DurationError::TooLong)),
            ("99999999999999999999h", Err(DurationError::TooLong)),
            ("-1s", Err(DurationError::Negative)),
            ("", Err(DurationError::Syntax)),
            ("30", Err(DurationError::Syntax)),
            ("s", Err(DurationError::Syntax)),
            (".s", Err(DurationError::Syntax)),
            ("1d", Err(DurationError::Syntax)),
            ("1 s", Err(DurationError::Syntax)),
            ("--1s", Err(DurationError::Syntax)),
        ];
        for (text, want) in table {
            assert_eq!(parse_duration(text), want.map(Duration::from_nanos), "{text}");
        }
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        let table = [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5µs"),
            (300_000_000, "300ms"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (900_000_000_000, "15m0s"),
            (86_400_000_000_000, "24h0m0s"),
        ];
        for (nanoseconds, want) in table {
            assert_eq!(format_duration(Duration::from_nanos(nanoseconds)), want);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_as_the_same(nanoseconds in 0..i64::MAX as u64) {
            let duration = Duration::from_nanos(nanoseconds);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.nuµmsh]{0,40}|.*") {
            let _ = parse_duration(&text);
        }
    }
}
