//! The syntax of names in the API. Sources: RFC 1123 section 2.1 (labels), RFC 6335 section 5.1 (service names).

/// Returns true for a DNS-1123 label: at most 63 lower-case letters, digits and hyphens, alphanumeric at both ends.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63 && ends_and_middle(name, inner, |byte| inner(byte) || *byte == b'-')
}

/// Returns true for a DNS-1123 subdomain: labels joined by dots, at most 253 characters in all.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| ends_and_middle(label, inner, |byte| inner(byte) || *byte == b'-'))
}

/// Returns true for a qualified name: an optional DNS subdomain and `/`, then a name of 1 to 63 characters.
pub fn is_qualified_name(name: &str) -> bool {
    match name.split_once('/') {
        Some((prefix, rest)) => is_dns_subdomain(prefix) && is_name_part(rest),
        None => is_name_part(name),
    }
}

/// Returns true for a label value: empty, or like the name part of a qualified name.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name_part(value)
}

/// Returns true for an IANA service name: at most 15 lower-case letters, digits and single inner hyphens, with at
/// least one letter.
pub(crate) fn is_service_name(name: &str) -> bool {
    name.len() <= 15
        && is_dns_label(name)
        && !name.contains("--")
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Returns true if the text can be one segment of a URL path.
pub(crate) fn is_path_segment(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
}

fn is_name_part(name: &str) -> bool {
    name.len() <= 63
        && ends_and_middle(name, u8::is_ascii_alphanumeric, |byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
        })
}

fn ends_and_middle(text: &str, end: impl Fn(&u8) -> bool, middle: impl Fn(&u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(&end) && bytes.last().is_some_and(&end) && bytes.iter().all(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        assert!(is_dns_label("a") && is_dns_label("a-1") && is_dns_label("1a"));
        assert!(!is_dns_label("") && !is_dns_label("-a") && !is_dns_label("A") && !is_dns_label("a.b"));
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        assert!(is_dns_subdomain("a.b-c.d") && !is_dns_subdomain("a..b") && !is_dns_subdomain("a."));
    }

    #[test]
    fn qualified_names_and_values() {
        assert!(is_qualified_name("app") && is_qualified_name("kubernetes.io/Service_name.x"));
        assert!(!is_qualified_name("/a") && !is_qualified_name("a/") && !is_qualified_name("a/b/c"));
        assert!(
            is_label_value("") && is_label_value("A_b.c") && !is_label_value("a/b") && !is_label_value("-a")
        );
    }

    #[test]
    fn service_names() {
        assert!(is_service_name("http") && is_service_name("h-1"));
        assert!(!is_service_name("80") && !is_service_name("a--b") && !is_service_name("abcdefghijklmnop"));
    }
}
