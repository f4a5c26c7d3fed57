//! Which Services a request asks for.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_engine::endpoints;
use portolan_model::{Forwarding, Frontend, Protocol, ServicePortName};

use super::Key;

/// Services on a page, if the request names no number.
pub(super) const LIMIT: usize = 100;
/// Services on a page at most.
pub(super) const LIMIT_MAX: usize = 1_000;
/// Bytes of the longest text to search for.
const SEARCH_MAX: usize = 256;

/// Which Services are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    /// Only this Service.
    pub(super) service: Option<Key>,
    /// Only Services of this namespace.
    pub(super) namespace: Option<Arc<str>>,
    /// Only Services after this one in the order of their names.
    pub(super) after: Option<Key>,
    /// Only Services that this finds.
    pub(super) search: Option<Search>,
    pub(super) limit: usize,
    /// Whether what the kernel has counted is asked for.
    pub(super) counters: bool,
}

/// What to search for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Search {
    /// A Service with a frontend or an endpoint of this address.
    Address(IpAddr),
    /// A Service whose namespace, name or port name contains this text.
    Text(String),
    /// A Service whose namespace ends with the first text, and whose name starts with the second one.
    Path(String, String),
}

impl Query {
    /// Parses the query of a URL.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut query =
            Self { service: None, namespace: None, after: None, search: None, limit: LIMIT, counters: false };
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decoded(value).ok_or_else(|| format!("{name}: `{value}` has a wrong escape"))?;
            match name {
                "service" => query.service = Some(key(name, &value)?),
                "after" => query.after = Some(key(name, &value)?),
                "namespace" => query.namespace = Some(value.into()),
                "search" => query.search = Search::parse(&value)?,
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    query.limit =
                        limit.ok_or(format!("limit: `{value}` is not a number from 1 to {LIMIT_MAX}"))?;
                }
                "counters" => {
                    query.counters =
                        value.parse().map_err(|_| format!("counters: `{value}` is not true or false"))?;
                }
                _ => {
                    return Err(format!(
                        "{name}: unknown; use service, namespace, search, after, limit or counters"
                    ));
                }
            }
        }
        Ok(query)
    }

    /// Returns the name after which the Services of the query start; `None` for the first one.
    pub(super) fn start(&self) -> Option<Arc<ServicePortName>> {
        let (namespace, service) = match (&self.after, &self.namespace) {
            (Some((of, service)), Some(namespace)) if of == namespace => (of.clone(), service.clone()),
            (_, Some(namespace)) => (namespace.clone(), "".into()),
            (Some((namespace, service)), None) => (namespace.clone(), service.clone()),
            (None, None) => return None,
        };
        // The first name that a port of the Service may have.
        Some(Arc::new(ServicePortName { namespace, service, port: "".into(), protocol: Protocol::Tcp }))
    }

    /// Returns true if the query is about this Service port, apart from the search and the number of Services.
    pub(super) fn has(&self, name: &ServicePortName) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace) && !self.is_after(name)
    }

    /// Returns true for a port of the Service after which the page starts.
    pub(super) fn is_after(&self, name: &ServicePortName) -> bool {
        self.after.as_ref().is_some_and(|after| after.0 == name.namespace && after.1 == name.service)
    }

    /// Returns true if the search finds this Service port, or there is no search.
    pub(super) fn finds(&self, name: &ServicePortName, forwarding: &Forwarding) -> bool {
        match &self.search {
            None => true,
            Some(Search::Address(address)) => has_address(forwarding, *address),
            Some(Search::Text(text)) => {
                [&name.namespace, &name.service, &name.port].iter().any(|part| part.contains(text.as_str()))
            }
            Some(Search::Path(namespace, service)) => {
                name.namespace.ends_with(namespace.as_str()) && name.service.starts_with(service.as_str())
            }
        }
    }
}

impl Search {
    /// Parses the text of a search. Names are in lower case, so the case of the text does not matter. `None` for an empty
    /// text.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let text = text.trim().to_lowercase();
        if text.len() > SEARCH_MAX {
            return Err(format!("search: the text is longer than {SEARCH_MAX} bytes"));
        }
        if text.is_empty() {
            return Ok(None);
        }
        if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Some(Self::Address(address.to_canonical())));
        }
        Ok(Some(match text.split_once('/') {
            Some((namespace, service)) => Self::Path(namespace.to_owned(), service.to_owned()),
            None => Self::Text(text),
        }))
    }
}

fn has_address(forwarding: &Forwarding, address: IpAddr) -> bool {
    let is_frontend =
        |frontend: &Frontend| frontend.socket().is_some_and(|socket| socket.ip().to_canonical() == address);
    forwarding.frontends.iter().any(is_frontend)
        || endpoints(forwarding).any(|(backend, ..)| backend.address.to_canonical() == address)
}

fn key(parameter: &str, value: &str) -> Result<Key, String> {
    match value.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.into(), name.into()))
        }
        _ => Err(format!("{parameter}: `{value}` is not of the form NAMESPACE/NAME")),
    }
}

/// Decodes `%XX` and `+` in a part of a query. `None` if an escape is wrong or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()?.checked_mul(16)?.checked_add(digit()?)?).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_can_be_escaped(text in any::<String>()) {
            let escaped: Vec<String> = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decoded(&escaped.concat()), Some(text));
        }

        #[test]
        fn a_query_is_parsed_or_refused(name in "service|after|namespace|search|limit|counters|", value in any::<String>()) {
            if let Err(error) = Query::parse(&format!("{name}={value}")) {
                prop_assert!(error.starts_with(&name) || value.contains('&'), "{}", error);
            }
        }
    }

    #[test]
    fn escapes_are_decoded() {
        for (text, want) in [
            ("a%2Fb", Some("a/b")),
            ("a+b%20c", Some("a b c")),
            ("%3cb%3E", Some("<b>")),
            ("%", None),
            ("%2", None),
            ("%+1", None),
            ("%zz", None),
            ("%ff", None),
            ("", Some("")),
        ] {
            assert_eq!(decoded(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn a_wrong_query_is_refused_with_the_parameter() {
        for (query, part) in [
            ("limit=0", "limit: `0`"),
            ("limit=1001", "limit: `1001` is not a number from 1 to 1000"),
            ("limit=x", "limit"),
            ("service=web", "service: `web` is not of the form NAMESPACE/NAME"),
            ("service=a/b/c", "service"),
            ("after=/x", "after"),
            ("search=%f", "search: `%f` has a wrong escape"),
            ("page=2", "page: unknown; use service, namespace, search, after, limit or counters"),
        ] {
            let error = Query::parse(query).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
        let long = format!("search={}", "a".repeat(SEARCH_MAX + 1));
        assert_eq!(Query::parse(&long).unwrap_err(), "search: the text is longer than 256 bytes");
    }

    #[test]
    fn a_search_is_an_address_a_path_or_a_text() {
        let search = |text: &str| Query::parse(&format!("search={text}")).unwrap().search;
        assert_eq!(search("+"), None);
        assert_eq!(search("WEB"), Some(Search::Text("web".into())));
        assert_eq!(search("fault%2Fw"), Some(Search::Path("fault".into(), "w".into())));
        assert_eq!(search("10.0.0.1"), Some(Search::Address([10, 0, 0, 1].into())));
        assert_eq!(search("[::ffff:10.0.0.1]"), Some(Search::Address([10, 0, 0, 1].into())));
        assert_eq!(search("10.0.0"), Some(Search::Text("10.0.0".into())));
    }
}
