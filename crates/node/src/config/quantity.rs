//! Quantities as Kubernetes spells them (`k8s.io/apimachinery/pkg/api/resource`): `4096`, `64Ki`, `1.5M`, `1e3`.

/// Returns true if a quantity is zero; `None` if the text is not a quantity.
pub(super) fn is_zero(text: &str) -> Option<bool> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at_checked(end)?;
    let digits = number.chars().filter(char::is_ascii_digit).count();
    if digits == 0 || number.len() > digits + 1 || !is_unit(unit) {
        return None;
    }
    Some(number.chars().all(|c| c == '0' || c == '.'))
}

fn is_unit(unit: &str) -> bool {
    const UNITS: &[&str] =
        &["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let exponent = unit.strip_prefix(['e', 'E']).unwrap_or_default();
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    UNITS.contains(&unit) || (!exponent.is_empty() && exponent.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        let table = [
            ("0", Some(true)),
            ("0.0", Some(true)),
            ("-0Ki", Some(true)),
            ("1", Some(false)),
            ("64Ki", Some(false)),
            ("1.5M", Some(false)),
            (".5", Some(false)),
            ("1e3", Some(false)),
            ("1E-3", Some(false)),
            ("1E", Some(false)),
            ("", None),
            (".", None),
            ("Ki", None),
            ("1.2.3", None),
            ("1KiB", None),
            ("1e", None),
            ("1 Ki", None),
            ("ten", None),
        ];
        for (text, want) in table {
            assert_eq!(is_zero(text), want, "{text}");
        }
    }
}
