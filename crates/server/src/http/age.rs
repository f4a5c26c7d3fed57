//! Ages in tables, by the rules of `k8s.io/apimachinery/pkg/util/duration` (`HumanDuration`).

/// Seconds since 1970 of an RFC 3339 time; fractions are dropped.
pub(super) fn unix_seconds(time: &str) -> Option<i64> {
    let (date, clock) = time.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let split = clock.find(['Z', '+', '-'])?;
    let (clock, zone) = clock.split_at_checked(split)?;
    let clock = clock.split('.').next()?;
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let in_range = (0..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !in_range {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(zone)?)
}

/// Seconds east of UTC: `Z`, `+hh:mm` or `-hh:mm`.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
    Some(sign * (i64::from(hours) * 3_600 + i64::from(minutes) * 60))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that start in March, so that the leap day is the last of its year; 400 of them are 146,097 days.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The age of something that happened at `time`; `now` in seconds since 1970.
pub(super) fn age(time: Option<&str>, now: i64) -> String {
    time.and_then(unix_seconds).map_or_else(|| "<unknown>".to_owned(), |then| human(now - then))
}

fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ if days < 2 * 365 => format!("{days}d"),
        _ if days < 8 * 365 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn two(large: i64, large_unit: &str, small: i64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-03-01T00:00:00.123456Z", Some(1_772_323_200)),
            ("2026-03-01T02:00:00+02:00", Some(1_772_323_200)),
            ("2026-02-28T23:30:00-00:30", Some(1_772_323_200)),
            ("2026-03-01", None),
            ("2026-13-01T00:00:00Z", None),
            ("T:Z", None),
            ("é-é-éTé:é:éZ", None),
            ("", None),
        ] {
            assert_eq!(unix_seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn ages() {
        let (minute, hour, day) = (60, 3_600, 86_400);
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (2 * minute + 1, "2m1s"),
            (10 * minute + 30, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 5 * minute, "7h5m"),
            (8 * hour + minute, "8h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day + hour, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (731 * day, "2y1d"),
            (8 * 365 * day + day, "8y"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
        assert_eq!(age(Some("1970-01-01T00:01:00Z"), 90), "30s");
        assert_eq!(age(None, 0), "<unknown>");
    }
}
