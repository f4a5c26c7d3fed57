//! Ranges of ports as Kubernetes writes them (`k8s.io/apimachinery/pkg/util/net`, `PortRange`).

use super::error::Problem;

/// Parses `FIRST-LAST` or `FIRST+MORE`; `None` for an empty text, `-`, `0` and `0-0`. A range must have at least two
/// ports.
pub(super) fn parse(text: &str) -> Result<Option<(u16, u16)>, Problem> {
    let text = text.trim();
    if matches!(text, "" | "-" | "0-0" | "0") {
        return Ok(None);
    }
    let number = |text: &str| text.trim().parse::<u16>().ok();
    let range = if let Some((first, last)) = text.split_once('-') {
        number(first).zip(number(last))
    } else if let Some((first, more)) = text.split_once('+') {
        let (first, more) = (number(first), number(more));
        first.zip(first.zip(more).and_then(|(first, more)| first.checked_add(more)))
    } else {
        None
    };
    let good = range.filter(|(first, last)| *first > 0 && first < last);
    good.map(Some).ok_or_else(|| Problem::PortRange { value: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let table = [
            ("", Some(None)),
            ("-", Some(None)),
            ("0-0", Some(None)),
            ("3000-4000", Some(Some((3000, 4000)))),
            (" 3000 - 4000 ", Some(Some((3000, 4000)))),
            ("3000+1", Some(Some((3000, 3001)))),
            ("65535+1", None),
            ("3000", None),
            ("3000-3000", None),
            ("4000-3000", None),
            ("0-9", None),
            ("1-65536", None),
            ("a-b", None),
            ("1-2-3", None),
        ];
        for (text, want) in table {
            assert_eq!(parse(text).ok(), want, "{text}");
        }
    }
}
