//! Times as RFC 3339 text, written in UTC. Days are counted in the proleptic Gregorian calendar.

const DAY: i64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01. Years are counted from March, so that the leap day is the last of its year.
const EPOCH: i64 = 719_468;
/// Days in 400 years.
const ERA: i64 = 146_097;

/// Parses a time to seconds since 1970 and nanoseconds. The offset from UTC is `Z` or `±hh:mm`.
pub fn parse(text: &str) -> Option<(i64, u32)> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix(['T', 't'])?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, b'-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, b':', [2, 2, 2])?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let (nanos, zone) = fraction(rest)?;
    let local = days_since_epoch(year, month, day) * DAY + hour * 3_600 + minute * 60 + second;
    in_range.then_some((local - offset(zone)?, nanos))
}

/// Formats a time in whole seconds; `None` outside of the years 0000 to 9999.
pub fn whole(seconds: i64) -> Option<String> {
    Some(format!("{}Z", civil(seconds)?))
}

/// Formats a time with six fractional digits; the rest is cut off. `None` outside of the years 0000 to 9999.
pub fn micro(seconds: i64, nanos: u32) -> Option<String> {
    (nanos < 1_000_000_000).then_some(())?;
    Some(format!("{}.{:06}Z", civil(seconds)?, nanos / 1_000))
}

fn civil(seconds: i64) -> Option<String> {
    let (days, clock) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let shifted = days.checked_add(EPOCH)?;
    let (era, day_of_era) = (shifted.div_euclid(ERA), shifted.rem_euclid(ERA));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    (0..=9_999)
        .contains(&year)
        .then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"))
}

fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * ERA + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - EPOCH
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Parses three numbers of these lengths.
fn numbers(text: &str, separator: u8, lengths: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(char::from(separator));
    let mut numbers = [0; 3];
    for (number, length) in numbers.iter_mut().zip(lengths) {
        *number = digits(parts.next()?, length)?;
    }
    parts.next().is_none().then_some(numbers)
}

fn digits(text: &str, length: usize) -> Option<i64> {
    let all = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok())?
}

/// Parses the fraction to nanoseconds. Returns the text after it.
fn fraction(text: &str) -> Option<(u32, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|it: char| !it.is_ascii_digit())?;
    let (fraction, zone) = rest.split_at_checked(end).filter(|(fraction, _)| !fraction.is_empty())?;
    let nine: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    Some((nine.parse().ok()?, zone))
}

/// Parses the offset to seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2000-02-29T23:59:59Z", 951_868_799, 0),
            ("2026-11-21T21:03:57.123456789Z", 1_795_295_037, 123_456_789),
            ("2026-11-21T23:03:57+02:00", 1_795_295_037, 0),
            ("2026-11-21T15:33:57-05:30", 1_795_295_037, 0),
            ("1969-12-31T23:59:59.5Z", -1, 500_000_000),
            ("0001-01-01T00:00:00Z", -62_135_596_800, 0),
        ] {
            assert_eq!(parse(text), Some((seconds, nanos)), "{text}");
        }
        assert_eq!(whole(1_795_295_037).as_deref(), Some("2026-11-21T21:03:57Z"));
        assert_eq!(micro(-1, 1_999).as_deref(), Some("1969-12-31T23:59:59.000001Z"));
        assert_eq!(whole(i64::MAX), None);
        assert_eq!(whole(i64::MIN), None);
        assert_eq!(micro(0, 1_000_000_000), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "now",
            "2026-11-21",
            "2026-11-21T21:03:57",
            "2026-11-21 21:03:57Z",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T21:03:60Z",
            "2026-11-21T21:03:57.Z",
            "2026-11-21T21:03:57+0200",
            "2026-11-21T21:03:57+24:00",
            "+026-11-21T21:03:57Z",
            "２026-11-21T21:03:57Z",
            "2026-11-21T21:03:57ZZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_is_read_as_it_was_written(
            seconds in -62_167_219_200_i64..253_402_300_800, micros in 0_u32..1_000_000,
        ) {
            let nanos = micros * 1_000;
            prop_assert_eq!(parse(&micro(seconds, nanos).unwrap()), Some((seconds, nanos)));
            prop_assert_eq!(parse(&whole(seconds).unwrap()), Some((seconds, 0)));
        }
    }
}
