//! Durations as in Kubernetes' configuration: numbers with units, such as `5s`, `500ms` or `1m30s`.

use std::time::Duration;

/// Reads a duration. Returns `None` if the text is not one.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at_checked(digits)?;
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at_checked(letters)?;
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let part = number.parse::<u64>().ok()?.checked_mul(milliseconds)?;
        total = total.checked_add(Duration::from_millis(part))?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in
            [("5s", 5000), ("500ms", 500), ("1m30s", 90_000), ("2h", 7_200_000), ("0s", 0)]
        {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "-1s",
            "1.5s",
            "5x",
            "99999999999999999999s",
            "18446744073709551615h",
            "5s ",
            "ä",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
