//! Content negotiation of `/flagz` and `/statusz` (KEP-4827, KEP-4828).

use hyper::header::{ACCEPT, HeaderMap};

/// A form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Text for people.
    Text,
    /// An API object.
    Object { version: Version, yaml: bool },
}

/// A version of the API group `config.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1Alpha1,
    V1Beta1,
}

impl Version {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

/// Returns the available form with the highest weight in `Accept`, and the first one of equal weights. An object is
/// returned only to clients that name its group, version and kind.
pub(super) fn negotiate(request: &HeaderMap, kind: &str) -> Option<Form> {
    if !request.contains_key(ACCEPT) {
        return Some(Form::Text);
    }
    let texts = request.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut best: Option<(f32, Form)> = None;
    for range in texts.flat_map(|text| text.split(',')) {
        let Some((weight, form)) = read(range, kind) else { continue };
        if weight > best.map_or(0.0, |(weight, _)| weight) {
            best = Some((weight, form));
        }
    }
    best.map(|(_, form)| form)
}

fn read(range: &str, kind: &str) -> Option<(f32, Form)> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let (mut weight, mut group, mut version, mut of_kind, mut others) = (1.0, None, None, None, false);
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let value = value.trim_matches('"');
        match name.to_ascii_lowercase().as_str() {
            "q" => weight = value.parse().ok()?,
            "g" => group = Some(value),
            "v" => version = Some(value),
            "as" => of_kind = Some(value),
            "charset" if value.eq_ignore_ascii_case("utf-8") => {}
            _ => others = true,
        }
    }
    let version = match version {
        Some("v1alpha1") => Some(Version::V1Alpha1),
        Some("v1beta1") => Some(Version::V1Beta1),
        Some(_) => return None,
        None => None,
    };
    let form = match (media.as_str(), group, version, of_kind) {
        ("text/plain" | "text/*" | "*/*", None, None, None) if !others => Form::Text,
        ("application/json", Some("config.k8s.io"), Some(version), Some(of)) if of == kind => {
            Form::Object { version, yaml: false }
        }
        ("application/yaml", Some("config.k8s.io"), Some(version), Some(of)) if of == kind => {
            Form::Object { version, yaml: true }
        }
        _ => return None,
    };
    Some((weight, form))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn objects_are_returned_to_clients_that_name_them() {
        let object = |version, yaml| Some(Form::Object { version, yaml });
        let (beta, alpha) = (Version::V1Beta1, Version::V1Alpha1);
        let table = [
            ("text/plain", Some(Form::Text)),
            ("text/plain; charset=utf-8", Some(Form::Text)),
            ("text/plain; charset=latin1", None),
            ("*/*", Some(Form::Text)),
            ("text/html", None),
            ("text/html, */*;q=0.1", Some(Form::Text)),
            ("text/plain;q=0", None),
            ("application/json", None),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Flagz", object(beta, false)),
            ("application/yaml; g=config.k8s.io; v=v1alpha1; as=Flagz", object(alpha, true)),
            ("application/json;g=config.k8s.io;v=v1;as=Flagz", None),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Statusz", None),
            ("application/json;g=other;v=v1beta1;as=Flagz", None),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Flagz, text/plain", object(beta, false)),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Flagz;q=0.5, text/plain", Some(Form::Text)),
            ("", None),
            (";;;", None),
        ];
        for (accept, want) in table {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(negotiate(&headers, "Flagz"), want, "{accept:?}");
        }
        assert_eq!(negotiate(&HeaderMap::new(), "Flagz"), Some(Form::Text));
    }
}
