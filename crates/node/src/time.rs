//! Times for operators and programs, always in UTC: as Go writes them in JSON (RFC 3339, nanoseconds without trailing
//! zeros), and as parts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Go's zero time.
pub(crate) const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

const DAY: u64 = 86_400;

/// Formats a time from 1970 on. An earlier one is shown as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let Parts { year, month, day, hour, minute, second, nanosecond } = Parts::of(time);
    let fraction = format!(".{nanosecond:09}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Formats a time in whole seconds, as times of API objects are.
pub(crate) fn rfc3339_seconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

/// A time in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Year, from 1970 on.
    pub year: u64,
    /// Month, 1 to 12.
    pub month: u64,
    /// Day, 1 to 31.
    pub day: u64,
    /// Hour, 0 to 23.
    pub hour: u64,
    /// Minute, 0 to 59.
    pub minute: u64,
    /// Second, 0 to 59.
    pub second: u64,
    /// Nanosecond, below one second.
    pub nanosecond: u32,
}

impl Parts {
    /// Splits a time from 1970 on. An earlier one counts as 1970.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (year, month, day) = civil(since.as_secs() / DAY);
        let second = since.as_secs() % DAY;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        Self { year, month, day, hour, minute, second, nanosecond: since.subsec_nanos() }
    }
}

/// Returns year, month and day of a number of days since 1970-01-01.
///
/// Years start in March in this computation, so that the leap day is the last one. 400 years have 146097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    // 719468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, after_december) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + after_december, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_go_prints_them() {
        let table = [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (951_868_799, 999_999_999, "2000-02-29T23:59:59.999999999Z"),
            (951_868_800, 100, "2000-03-01T00:00:00.0000001Z"),
            (1_772_359_200, 500_000_000, "2026-03-01T10:00:00.5Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, nanoseconds, want) in table {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::new(seconds, nanoseconds)), want);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for day in 1..200_000 {
            let (year, month, date) = civil(day);
            let next_day = (year, month) == (before.0, before.1) && date == before.2 + 1;
            let next_month = date == 1
                && before.2 >= 28
                && ((year == before.0 && month == before.1 + 1)
                    || (year == before.0 + 1 && (month, before.1) == (1, 12)));
            assert!(next_day || next_month, "{before:?} then {:?}", (year, month, date));
            before = (year, month, date);
        }
    }
}
