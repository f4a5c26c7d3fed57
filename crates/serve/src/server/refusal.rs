//! Answers to requests that are refused before they reach the API.

use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use portolan_http::{Answer, Attributes, Target};
use portolan_schema::json::{Value, json};
use portolan_web::JSON;

use crate::security::forbidden_message;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request has no valid credential.
    Unauthorized,
    /// The user lacks the permission.
    Forbidden { user: String },
    /// A web page in a browser sent the request.
    Browser,
    /// The request asks to act as another user.
    Impersonation,
    /// Too many concurrent requests.
    TooMany,
    /// The request missed its deadline.
    Timeout,
    /// The path does not support the method.
    Method,
    /// The path does not exist.
    NotFound,
}

impl Refusal {
    /// Returns the answer: a Status with upstream's message.
    pub(super) fn answer(&self, attributes: &Attributes) -> Answer {
        let (code, reason, message) = match self {
            Self::Unauthorized => (401, "Unauthorized", "Unauthorized".to_owned()),
            Self::Forbidden { user } => (403, "Forbidden", forbidden_message(user, attributes)),
            Self::Browser => (
                403,
                "Forbidden",
                "a page in a browser may not use this API: the request has an Origin, or the name of a host other than localhost".to_owned(),
            ),
            Self::Impersonation => (
                403,
                "Forbidden",
                "this server knows no impersonation: leave out --as, --as-group, --as-uid and the headers Impersonate-*".to_owned(),
            ),
            Self::TooMany => {
                (429, "TooManyRequests", "Too many requests, please try again later.".to_owned())
            }
            Self::Timeout => {
                (504, "Timeout", "request did not complete within the time limit".to_owned())
            }
            Self::Method => {
                (405, "MethodNotAllowed", "the server does not allow this method on the requested resource".to_owned())
            }
            Self::NotFound => {
                (404, "NotFound", "the server could not find the requested resource".to_owned())
            }
        };
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        if let (Some(details), Some(status)) = (self.details(attributes), status.as_object_mut()) {
            status.insert("details".to_owned(), details);
        }
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = text(code, JSON, status.to_string());
        if *self == Self::TooMany {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if *self == Self::Unauthorized {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }

    fn details(&self, attributes: &Attributes) -> Option<Value> {
        match (self, &attributes.target) {
            (Self::TooMany, _) => Some(json!({"retryAfterSeconds": 1})),
            (Self::Forbidden { .. }, Target::Resource { group, resource, name, .. }) => {
                Some(json!({"name": name, "group": group, "kind": resource}))
            }
            _ => None,
        }
    }
}

/// Returns an answer with a text body.
pub(super) fn text(code: StatusCode, media_type: &'static str, text: String) -> Answer {
    portolan_web::answer(code, media_type, text).map(BodyExt::boxed_unsync)
}
