//! Ages in tables, by the rules of `k8s.io/apimachinery/pkg/util/duration` (`HumanDuration`).

use portolan_schema::shape::timestamp;

/// Formats the time from `time` until `now`, which is in seconds since 1970.
pub(super) fn age(time: Option<&str>, now: i64) -> String {
    let then = time.and_then(timestamp::parse);
    then.map_or_else(|| "<unknown>".to_owned(), |(then, _)| human(now.saturating_sub(then)))
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
        assert_eq!((age(None, 0).as_str(), age(Some("soon"), 0).as_str()), ("<unknown>", "<unknown>"));
    }
}
