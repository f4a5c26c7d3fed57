//! `Accept`: chooses the representation that a client gets. Header text in, a choice out.
//!
//! Clauses are tried by descending q value, named types before wildcards, and otherwise in their order. The first one
//! that the server supports wins. A clause with a transformation (`as=`) that is not supported for the content is
//! skipped, as upstream does.

use http::{HeaderMap, header};
use portolan_api::ApiError;

/// How an answer is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

/// Which part of objects is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum View {
    /// The whole objects, as they are stored.
    Whole,
    /// A Table of `meta.k8s.io` in this version.
    Table(MetaVersion),
    /// The metadata alone: `PartialObjectMetadata` in this version.
    Metadata(MetaVersion),
}

/// A version of the group `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MetaVersion {
    V1,
    V1Beta1,
}

/// The content of an answer. It determines which representations are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// One object.
    Object,
    /// A list of objects.
    List,
    /// Watch events.
    Watch,
}

/// A representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Format {
    pub(super) encoding: Encoding,
    pub(super) view: View,
}

/// The clauses of `Accept`, best first.
#[derive(Debug)]
pub(super) struct Accept<'a>(Vec<Clause<'a>>);

/// One media range with its parameters.
#[derive(Debug)]
pub(super) struct Clause<'a> {
    range: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// The q value; 1 if it is missing.
    quality: f32,
}

impl<'a> Accept<'a> {
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut clauses: Vec<Clause<'a>> = headers
            .get_all(header::ACCEPT)
            .into_iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|clause| !clause.is_empty())
            .map(Clause::parse)
            .collect();
        if clauses.is_empty() {
            clauses.push(Clause::parse("*/*"));
        }
        clauses.retain(|clause| clause.quality > 0.0);
        clauses.sort_by(|left, right| {
            let by_quality = right.quality.total_cmp(&left.quality);
            by_quality.then_with(|| left.wildcards().cmp(&right.wildcards()))
        });
        Self(clauses)
    }

    /// Returns the choice for the first clause for which `choice` returns one.
    pub(super) fn choose<T>(&self, choice: impl Fn(&Clause<'a>) -> Option<T>) -> Result<T, ApiError> {
        self.0.iter().find_map(choice).ok_or(ApiError::NotAcceptable)
    }

    /// Returns the representation of objects.
    pub(super) fn format(&self, content: Content) -> Result<Format, ApiError> {
        self.choose(|clause| clause.format(content))
    }

    /// Returns the encoding of a Status, or of a document that does not contain objects.
    pub(super) fn encoding(&self) -> Result<Encoding, ApiError> {
        self.choose(Clause::encoding)
    }
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts
            .map(|part| part.split_once('=').unwrap_or((part, "")))
            .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
            .collect();
        let quality = parameters.iter().find(|(name, _)| *name == "q").map_or("1", |(_, value)| value);
        Self { range, quality: quality.parse().unwrap_or(1.0), parameters }
    }

    fn wildcards(&self) -> usize {
        self.range.matches('*').count()
    }

    /// Returns true if the clause includes this media type, by name or wildcard.
    pub(super) fn takes(&self, media_type: &str) -> bool {
        let family = media_type.split('/').next().unwrap_or_default();
        self.range == "*/*"
            || self.range.eq_ignore_ascii_case(media_type)
            || self.range.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(family))
    }

    /// Returns the value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find_map(|(key, value)| (*key == name).then_some(*value))
    }

    /// Returns the encoding, regardless of any transformation.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        [Encoding::Json, Encoding::Yaml, Encoding::Protobuf]
            .into_iter()
            .find(|encoding| self.takes(encoding.media_type()))
    }

    fn format(&self, content: Content) -> Option<Format> {
        let encoding = self.encoding()?;
        let view = self.view(content)?;
        let framed = content == Content::Watch;
        let possible = match encoding {
            Encoding::Json => true,
            // Clients know no framing for a stream of YAML.
            Encoding::Yaml => !framed,
            // There is no protobuf message for a Table, and only JSON clients use versions before v1.
            Encoding::Protobuf => matches!(view, View::Whole | View::Metadata(MetaVersion::V1)),
        };
        let streamed = match self.parameter("stream") {
            None | Some("") => true,
            Some(stream) => framed && stream == "watch",
        };
        (possible && streamed).then_some(Format { encoding, view })
    }

    fn view(&self, content: Content) -> Option<View> {
        let Some(kind) = self.parameter("as") else { return Some(View::Whole) };
        if self.parameter("g") != Some("meta.k8s.io") {
            return None;
        }
        let version = match self.parameter("v")? {
            "v1" => MetaVersion::V1,
            "v1beta1" => MetaVersion::V1Beta1,
            _ => return None,
        };
        match (kind, content) {
            ("Table", _) => Some(View::Table(version)),
            ("PartialObjectMetadata", Content::Object | Content::Watch)
            | ("PartialObjectMetadataList", Content::List) => Some(View::Metadata(version)),
            _ => None,
        }
    }
}

impl Encoding {
    /// Returns the media type, without parameters.
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

impl MetaVersion {
    /// Returns the `apiVersion` of the representation.
    pub(super) const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn format(accept: &str, content: Content) -> String {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
        }
        match Accept::of(&headers).format(content) {
            Ok(Format { encoding, view }) => format!("{encoding:?} {view:?}"),
            Err(error) => error.reason().to_owned(),
        }
    }

    #[test]
    fn the_first_clause_that_fits_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        for (accept, content, expected) in [
            ("", Content::List, "Json Whole"),
            ("*/*", Content::Watch, "Json Whole"),
            ("application/*", Content::Object, "Json Whole"),
            ("application/yaml", Content::Object, "Yaml Whole"),
            ("application/yaml", Content::Watch, "NotAcceptable"),
            ("application/yaml;q=0.5, application/json;q=0.4", Content::List, "Yaml Whole"),
            ("*/*, application/yaml", Content::List, "Yaml Whole"),
            ("text/html, application/json;q=0", Content::List, "NotAcceptable"),
            ("application/vnd.kubernetes.protobuf, */*", Content::List, "Protobuf Whole"),
            ("application/vnd.kubernetes.protobuf;stream=watch", Content::Watch, "Protobuf Whole"),
            ("application/vnd.kubernetes.protobuf;stream=watch", Content::List, "NotAcceptable"),
            (kubectl, Content::List, "Json Table(V1)"),
            (kubectl, Content::Watch, "Json Table(V1)"),
            ("application/json;as=Table;g=meta.k8s.io;v=v1beta1", Content::Object, "Json Table(V1Beta1)"),
            ("application/json;as=Table;g=meta.k8s.io;v=v2,application/json", Content::List, "Json Whole"),
            ("application/json;as=Table;g=other;v=v1", Content::List, "NotAcceptable"),
            (
                "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
                Content::List,
                "NotAcceptable",
            ),
            (metadata, Content::List, "Protobuf Metadata(V1)"),
            (metadata, Content::Object, "Json Whole"),
        ] {
            assert_eq!(format(accept, content), expected, "{accept} {content:?}");
        }
    }
}
