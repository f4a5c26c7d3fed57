//! Presentation: converts stored objects into the representation that the client asks for.
//!
//! Stored bytes in, encoded bytes out. Plain JSON, which is by far the most frequent, is passed through unchanged.
//! Protobuf is encoded from the JSON text. All other representations are made from the decoded object.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use portolan_api::ApiError;
use portolan_schema::{
    Resource,
    json::{Object, Value, json},
    protobuf::Form,
    view,
};
use portolan_store::StoredObject;

use super::{
    Answer,
    accept::{Accept, Content, Encoding, Format, View},
    list_body::ListBody,
    protobuf::{self, Item},
    query::Query,
    table::{self, IncludeObject},
    text_list::{Style, TextList},
};

/// Number of list items that are decoded before the task yields. Each takes about 10 us.
const ITEMS_AT_A_TIME: usize = 100;

/// Presents the objects of one resource to one client.
#[derive(Debug, Clone)]
pub(super) struct Presenter {
    pub(super) format: Format,
    pub(super) resource: Resource,
    include: IncludeObject,
    pretty: bool,
    /// The current time for ages, in seconds since 1970.
    now: i64,
}

impl Presenter {
    pub(super) fn new(
        headers: &HeaderMap,
        query: &Query,
        resource: Resource,
        content: Content,
    ) -> Result<Self, ApiError> {
        let format = Accept::of(headers).format(content)?;
        let include = IncludeObject::parse(query)?;
        Ok(Self { format, resource, include, pretty: query.flag("pretty")?, now: now() })
    }

    /// Answers with one object.
    pub(super) fn object(&self, code: StatusCode, stored: Bytes) -> Result<Answer, ApiError> {
        if self.passes_stored_bytes() && !self.pretty {
            return Ok(answer(code, Encoding::Json, stored));
        }
        if self.format.encoding == Encoding::Protobuf {
            return Ok(answer(code, Encoding::Protobuf, protobuf::stored(self.form(), &self.seen(stored))?));
        }
        let object = self.decoded(&stored);
        Ok(document(code, self.format.encoding, self.pretty, &self.view(&object, true)))
    }

    /// Answers with a list of stored objects. `metadata` is that of the list. Yields to other tasks while the list is
    /// encoded.
    pub(super) async fn stored_list(
        &self,
        metadata: &Value,
        objects: &[Arc<StoredObject>],
    ) -> Result<Answer, ApiError> {
        if self.keeps_encoding() {
            let objects = objects.iter().map(|object| Item::Stored(Arc::clone(object)));
            return self.protobuf_list(metadata, objects).await;
        }
        self.list(metadata, objects.iter().map(|object| object.body().clone()).collect()).await
    }

    /// Answers with a list of objects in JSON.
    pub(super) async fn list(&self, metadata: &Value, objects: Vec<Bytes>) -> Result<Answer, ApiError> {
        if self.format.encoding == Encoding::Protobuf {
            let objects = objects.into_iter().map(|stored| Item::Json(self.seen(stored)));
            return self.protobuf_list(metadata, objects).await;
        }
        let head = self.list_head(metadata);
        let style = match self.format.encoding {
            Encoding::Yaml => Style::Yaml,
            Encoding::Json | Encoding::Protobuf if self.pretty => Style::Pretty,
            Encoding::Json | Encoding::Protobuf => {
                let body = ListBody::new(&head, self.items(objects).await);
                return Ok(typed(StatusCode::OK, Encoding::Json, body.boxed_unsync()));
            }
        };
        let mut head: Object = serde_json::from_str(&format!("{head}]}}")).unwrap_or_default();
        let items = if matches!(self.format.view, View::Table(_)) { "rows" } else { "items" };
        head.remove(items);
        let presenter = self.clone();
        let list = TextList::new(style, &head, items, objects, move |stored| presenter.item(stored));
        Ok(typed(StatusCode::OK, self.format.encoding, list.boxed_unsync()))
    }

    async fn protobuf_list(
        &self,
        metadata: &Value,
        objects: impl Iterator<Item = Item>,
    ) -> Result<Answer, ApiError> {
        let list = protobuf::list(self.form(), metadata, objects).await?;
        Ok(typed(StatusCode::OK, Encoding::Protobuf, list.boxed_unsync()))
    }

    /// Returns the object of a watch event as JSON. `first` is true for the first event of the watch.
    pub(super) fn event_json(&self, stored: &Bytes, first: bool) -> Bytes {
        if self.passes_stored_bytes() {
            return stored.clone();
        }
        let presenter = Self { now: now(), ..self.clone() };
        presenter.view(&self.decoded(stored), first).to_string().into()
    }

    /// Returns true if stored objects may keep their encoding for this form.
    fn keeps_encoding(&self) -> bool {
        self.format == Format { encoding: Encoding::Protobuf, view: View::Whole }
            && self.resource.stored() == self.resource
    }

    /// Returns a watch event in protobuf with an object of the store.
    pub(super) fn stored_event_protobuf(&self, kind: &str, stored: &StoredObject) -> Result<Bytes, ApiError> {
        if self.keeps_encoding() {
            protobuf::kept_event(self.form(), kind, stored)
        } else {
            self.event_protobuf(kind, stored.body())
        }
    }

    /// Returns a watch event in protobuf.
    pub(super) fn event_protobuf(&self, kind: &str, stored: &Bytes) -> Result<Bytes, ApiError> {
        protobuf::stored_event(self.form(), kind, &self.seen(stored.clone()))
    }

    /// Returns true if the stored bytes are the answer.
    pub(super) fn passes_stored_bytes(&self) -> bool {
        let format = Format { encoding: Encoding::Json, view: View::Whole };
        self.format == format && self.resource.stored() == self.resource
    }

    /// Decodes an object and converts it to the form of this resource.
    fn decoded(&self, stored: &Bytes) -> Object {
        view::seen(self.resource, serde_json::from_slice(stored).unwrap_or_default())
    }

    /// Converts the JSON of an object to the form of this resource.
    fn seen(&self, stored: Bytes) -> Bytes {
        view::seen_body(self.resource, &stored).map_or(stored, Bytes::from)
    }

    /// Returns which form of an object is encoded in protobuf.
    fn form(&self) -> Form {
        match self.format.view {
            View::Metadata(version) => Form::Metadata(version.api_version()),
            View::Whole | View::Table(_) => Form::Whole(self.resource),
        }
    }

    /// Returns the representation of one object. A Table includes its column definitions only if `with_columns` is
    /// true.
    fn view(&self, object: &Object, with_columns: bool) -> Value {
        match self.format.view {
            View::Whole => Value::Object(object.clone()),
            View::Metadata(version) => table::partial(object, version),
            View::Table(version) => {
                let revision = object.get("metadata").and_then(|metadata| metadata.get("resourceVersion"));
                let columns =
                    if with_columns { table::column_definitions(self.resource) } else { Value::Null };
                json!({
                    "kind": "Table", "apiVersion": version.api_version(),
                    "metadata": {"resourceVersion": revision},
                    "columnDefinitions": columns,
                    "rows": [table::row(self.resource, object, self.include, version, self.now)],
                })
            }
        }
    }

    /// Returns the text of the list before its first item.
    fn list_head(&self, metadata: &Value) -> String {
        let info = self.resource.info();
        match self.format.view {
            View::Whole => format!(
                r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
                info.kind, info.api_version
            ),
            View::Metadata(version) => format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"{}","metadata":{metadata},"items":["#,
                version.api_version()
            ),
            View::Table(version) => format!(
                r#"{{"kind":"Table","apiVersion":"{}","metadata":{metadata},"columnDefinitions":{},"rows":["#,
                version.api_version(),
                table::column_definitions(self.resource)
            ),
        }
    }

    async fn items(&self, objects: Vec<Bytes>) -> Vec<Bytes> {
        if self.format.view == View::Whole && self.resource.stored() == self.resource {
            return objects;
        }
        let mut items = Vec::with_capacity(objects.len());
        for (index, stored) in objects.into_iter().enumerate() {
            if index % ITEMS_AT_A_TIME == ITEMS_AT_A_TIME - 1 {
                tokio::task::yield_now().await;
            }
            items.push(self.item(&stored).to_string().into());
        }
        items
    }

    /// Returns an item of a list.
    fn item(&self, stored: &Bytes) -> Value {
        let object = self.decoded(stored);
        match self.format.view {
            View::Whole => Value::Object(object),
            View::Metadata(version) => table::partial(&object, version),
            View::Table(version) => table::row(self.resource, &object, self.include, version, self.now),
        }
    }
}

/// Answers with a document. A document without a protobuf form, such as discovery, is sent as JSON.
pub(super) fn document(code: StatusCode, encoding: Encoding, pretty: bool, value: &Value) -> Answer {
    match encoding {
        Encoding::Yaml => {
            // Every JSON value is a YAML value.
            let text = serde_saphyr::to_string(value).unwrap_or_default();
            answer(code, Encoding::Yaml, text.into())
        }
        Encoding::Json | Encoding::Protobuf => {
            let message = value.as_object().filter(|_| encoding == Encoding::Protobuf);
            match message.and_then(|object| protobuf::object(object).ok()) {
                Some(message) => answer(code, Encoding::Protobuf, message),
                None if pretty => {
                    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
                    text.push(b'\n');
                    answer(code, Encoding::Json, text.into())
                }
                None => answer(code, Encoding::Json, value.to_string().into()),
            }
        }
    }
}

pub(super) fn answer(code: StatusCode, encoding: Encoding, body: Bytes) -> Answer {
    typed(code, encoding, Full::new(body).boxed_unsync())
}

fn typed(
    code: StatusCode,
    encoding: Encoding,
    body: http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(encoding.media_type()));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    answer
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
