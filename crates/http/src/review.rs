//! Questions of a client about itself: who it is and what it may do (`authorization.k8s.io`, `authentication.k8s.io`).
//!
//! A question is created like an object. The answer comes from the client's [`Subject`]. As upstream, the client gets only
//! an access review back as it was sent. Nothing is stored.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use portolan_api::{ApiError, FieldError, Refused, is_label_value, is_qualified_name, metadata};
use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
    shape::{self, FieldValidation},
};

use super::{
    Answer, Arriving, Attributes, Target, accept::Content, attributes::verb_named, body, not_allowed,
    present::Presenter, query::Query, warn, write_options,
};

/// Errors about a question after which no more are looked for. Not more than this are reported.
const MOST_ERRORS: usize = 100;

/// The client of a request: who it is and what it may do.
pub trait Subject: Send + Sync {
    /// Returns the name of the user.
    fn user(&self) -> &str;

    /// Returns the groups of the user.
    fn groups(&self) -> Vec<&str>;

    /// Returns true if the client may send a request with these attributes.
    fn may(&self, attributes: &Attributes) -> bool;

    /// Returns everything that the client may do. It is the same in every namespace.
    fn rules(&self) -> Vec<Rule>;
}

/// Requests that a client may send. `*` in a list stands for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Requests for objects.
    Resources {
        /// Verbs, such as `list`.
        verbs: &'static [&'static str],
        /// API groups; empty for the core group.
        groups: &'static [&'static str],
        /// Plural names of resources.
        resources: &'static [&'static str],
    },
    /// Requests for other paths.
    Paths {
        /// HTTP methods in lower case.
        verbs: &'static [&'static str],
        /// Paths. A `*` at the end stands for everything below.
        paths: &'static [&'static str],
    },
}

/// Answers a question.
pub(super) async fn answer(
    request: Request<Arriving>,
    query: &Query,
    resource: Resource,
    subject: &dyn Subject,
) -> Result<Answer, Refused> {
    if *request.method() != Method::POST {
        return Err(not_allowed(request.method()).into());
    }
    let presenter = Presenter::new(request.headers(), query, resource, Content::Object)?;
    let validation = write_options(request.headers(), query)?.field_validation;
    let (mut object, mut warnings) = body::read_object(request, resource, validation).await?;
    check_kind(resource, &mut object)?;
    let answered = conform(resource, &mut object, validation).and_then(|unknown| {
        warnings.extend(unknown);
        complete(resource, &mut object, subject)
    });
    if let Err(error) = answered {
        return Err(Refused { error, warnings });
    }
    let body = Bytes::from(Value::Object(object).to_string());
    let mut answer = presenter.object(StatusCode::CREATED, body)?;
    warn(answer.headers_mut(), &warnings);
    Ok(answer)
}

/// Fills in apiVersion and kind, and refuses those of another resource.
fn check_kind(resource: Resource, object: &mut Object) -> Result<(), ApiError> {
    let info = resource.info();
    for (field, url) in [("apiVersion", info.api_version), ("kind", info.kind)] {
        let body = object.get(field).and_then(Value::as_str).filter(|body| !body.is_empty());
        if let Some(body) = body.filter(|body| *body != url) {
            return Err(ApiError::mismatch(field, body, url));
        }
        object.insert(field.to_owned(), url.into());
    }
    Ok(())
}

/// Checks the types of the fields and removes unknown ones. Returns the warnings about them.
fn conform(
    resource: Resource,
    object: &mut Object,
    validation: FieldValidation,
) -> Result<Vec<String>, ApiError> {
    let unknown = shape::conform(resource, object)?;
    match validation {
        FieldValidation::Strict if !unknown.is_empty() => Err(ApiError::UnknownFields { fields: unknown }),
        FieldValidation::Ignore => Ok(Vec::new()),
        _ => Ok(unknown.into_iter().map(|field| format!("unknown field \"{field}\"")).collect()),
    }
}

/// Checks a question and fills in the answer.
fn complete(resource: Resource, object: &mut Object, subject: &dyn Subject) -> Result<(), ApiError> {
    let given = object.insert("metadata".to_owned(), json!({}));
    let status = match resource {
        Resource::AccessReview => access(object, given, subject)?,
        Resource::RulesReview => {
            let spec = object.insert("spec".to_owned(), json!({}));
            let spec = spec.as_ref().and_then(Value::as_object);
            if spec.and_then(|spec| json::text(spec, "namespace")).is_none() {
                let expected = "the namespace that the rules are for";
                return Err(ApiError::WrongType {
                    field: "spec.namespace".to_owned(),
                    expected,
                    got: "nothing",
                });
            }
            rules(&subject.rules())
        }
        _ => {
            object.insert("metadata".to_owned(), json!({"creationTimestamp": metadata::now()}));
            json!({"userInfo": {"username": subject.user(), "groups": subject.groups()}})
        }
    };
    object.insert("status".to_owned(), status);
    Ok(())
}

/// Returns the answer to an access review. `metadata` is what the client sent.
fn access(object: &Object, metadata: Option<Value>, subject: &dyn Subject) -> Result<Value, ApiError> {
    let empty = Object::new();
    let spec = json::object(object, "spec").unwrap_or(&empty);
    let mut errors = Vec::new();
    let asked = asked(spec).map_err(|error| errors.push(error));
    if let Some(attributes) = json::object(spec, "resourceAttributes") {
        selector_errors(attributes, "fieldSelector", &mut errors);
        selector_errors(attributes, "labelSelector", &mut errors);
    }
    errors.extend(not_empty(metadata));
    match asked {
        Ok(asked) if errors.is_empty() => Ok(json!({"allowed": subject.may(&asked)})),
        _ => Err(ApiError::invalid(Resource::AccessReview, "", errors)),
    }
}

/// Checks a selector in an access review: it is either a text or requirements. Permissions do not depend on it. Source:
/// `pkg/apis/authorization/validation/validation.go`, `apimachinery/pkg/apis/meta/v1/validation/validation.go`.
fn selector_errors(attributes: &Object, name: &str, errors: &mut Vec<FieldError>) {
    let Some(selector) = json::object(attributes, name) else { return };
    let path = format!("spec.resourceAttributes.{name}");
    let requirements = json::list(selector, "requirements");
    match (json::text(selector, "rawSelector"), requirements.is_empty()) {
        (Some(text), false) => {
            let why = "may not be set together with requirements";
            errors.push(FieldError::invalid(format!("{path}.rawSelector"), text, why));
        }
        (None, true) => {
            let why = "a selector needs requirements or a rawSelector";
            errors.push(FieldError::required(format!("{path}.requirements"), why));
        }
        _ => {}
    }
    for (index, requirement) in requirements.iter().filter_map(Value::as_object).enumerate() {
        if errors.len() >= MOST_ERRORS {
            return;
        }
        let path = format!("{path}.requirements[{index}]");
        if name == "labelSelector" {
            label_errors(requirement, &path, errors);
        } else if json::text(requirement, "key").is_none() {
            errors.push(FieldError::required(format!("{path}.key"), "the field in question"));
        }
        let (field, has_values) = (format!("{path}.values"), !json::list(requirement, "values").is_empty());
        // A newer client may know other operators.
        match json::text(requirement, "operator") {
            Some("In" | "NotIn") if !has_values => {
                errors.push(FieldError::required(field, "the operators In and NotIn need values"));
            }
            Some("Exists" | "DoesNotExist") if has_values => {
                let why = "the operators Exists and DoesNotExist have no values";
                errors.push(FieldError::forbidden(field, why));
            }
            _ => {}
        }
    }
}

/// Checks the syntax of a requirement on a label.
fn label_errors(requirement: &Object, path: &str, errors: &mut Vec<FieldError>) {
    let key = json::text(requirement, "key").unwrap_or_default();
    if !is_qualified_name(key) {
        errors.push(FieldError::invalid(format!("{path}.key"), key, "must be a qualified name"));
    }
    let values = json::texts(requirement, "values").enumerate();
    let wrong = values.filter(|(_, value)| !is_label_value(value)).take(MOST_ERRORS);
    errors.extend(wrong.map(|(index, value)| {
        FieldError::invalid(format!("{path}.values[{index}]"), value, "must be a label value")
    }));
}

/// Returns the error for metadata of an access review, which has none. What every create drops is no error.
fn not_empty(metadata: Option<Value>) -> Option<FieldError> {
    const DROPPED: [&str; 7] = [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "managedFields",
        "namespace",
        "selfLink",
        "uid",
    ];
    let mut metadata = metadata?;
    metadata.as_object_mut()?.retain(|name, _| !DROPPED.contains(&name.as_str()));
    let is_empty = metadata.as_object().is_none_or(Object::is_empty);
    (!is_empty).then(|| FieldError::invalid("metadata", metadata, "must be empty"))
}

/// Returns the attributes of the request that an access review is about.
fn asked(spec: &Object) -> Result<Attributes, FieldError> {
    let text = |of: &Object, key| json::text(of, key).unwrap_or_default().to_owned();
    let (objects, path) =
        (json::object(spec, "resourceAttributes"), json::object(spec, "nonResourceAttributes"));
    let (verb, target) = match (objects, path) {
        (Some(objects), None) => {
            let target = Target::Resource {
                group: text(objects, "group"),
                version: text(objects, "version"),
                resource: text(objects, "resource"),
                subresource: text(objects, "subresource"),
                namespace: text(objects, "namespace"),
                name: text(objects, "name"),
            };
            (text(objects, "verb"), target)
        }
        (None, Some(path)) => (text(path, "verb"), Target::Path(text(path, "path"))),
        (objects, _) => {
            let why = "exactly one of resourceAttributes and nonResourceAttributes must be set";
            let given: Vec<&str> = spec.keys().map(json::Text::as_str).collect();
            // The field that upstream names.
            let field = if objects.is_some() { "nonResourceAttributes" } else { "resourceAttributes" };
            return Err(FieldError::invalid(format!("spec.{field}"), given.join(", "), why));
        }
    };
    Ok(Attributes { verb: verb_named(&verb), target })
}

fn rules(rules: &[Rule]) -> Value {
    let (mut resource_rules, mut path_rules) = (Vec::new(), Vec::new());
    for rule in rules {
        match rule {
            Rule::Resources { verbs, groups, resources } => {
                resource_rules.push(json!({"verbs": verbs, "apiGroups": groups, "resources": resources}));
            }
            Rule::Paths { verbs, paths } => {
                path_rules.push(json!({"verbs": verbs, "nonResourceURLs": paths}));
            }
        }
    }
    json!({"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": false})
}

impl Rule {
    /// Returns true if the rule allows a request with these attributes. A resource name in a rule does not include
    /// its subresources; `*` does.
    pub fn allows(&self, attributes: &Attributes) -> bool {
        let has = |list: &[&str], wanted: &str| list.iter().any(|it| *it == "*" || *it == wanted);
        match (self, &attributes.target) {
            (
                Self::Resources { verbs, groups, resources },
                Target::Resource { group, resource, subresource, .. },
            ) => {
                let is_named =
                    if subresource.is_empty() { has(resources, resource) } else { has(resources, "*") };
                has(verbs, attributes.verb) && has(groups, group) && is_named
            }
            (Self::Paths { verbs, paths }, Target::Path(path)) => {
                let fits = |pattern: &&str| match pattern.strip_suffix('*') {
                    Some(above) => path.starts_with(above),
                    None => path == pattern,
                };
                has(verbs, attributes.verb) && paths.iter().any(fits)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Reader;

    const RULES: [Rule; 2] = [
        Rule::Resources { verbs: &["get", "list"], groups: &["", "apps"], resources: &["services"] },
        Rule::Paths { verbs: &["get"], paths: &["/api", "/api/*"] },
    ];

    impl Subject for Reader {
        fn user(&self) -> &'static str {
            "eve"
        }

        fn groups(&self) -> Vec<&str> {
            vec!["readers"]
        }

        fn may(&self, attributes: &Attributes) -> bool {
            RULES.iter().any(|rule| rule.allows(attributes))
        }

        fn rules(&self) -> Vec<Rule> {
            RULES.to_vec()
        }
    }

    fn completed(resource: Resource, mut object: Value) -> Result<Value, ApiError> {
        complete(resource, object.as_object_mut().unwrap(), &Reader).map(|()| object)
    }

    fn answer(resource: Resource, spec: &Value) -> Result<Value, ApiError> {
        Ok(completed(resource, json!({"spec": spec}))?["status"].clone())
    }

    #[test]
    fn access_reviews_follow_the_rules() {
        let objects = |verb: &str, group: &str, resource: &str, subresource: &str| json!({"resourceAttributes": {"verb": verb, "group": group, "resource": resource, "subresource": subresource}});
        let path = |verb: &str, path: &str| json!({"nonResourceAttributes": {"verb": verb, "path": path}});
        for (spec, allowed) in [
            (objects("get", "", "services", ""), true),
            (objects("list", "apps", "services", ""), true),
            (objects("delete", "", "services", ""), false),
            (objects("*", "", "services", ""), false),
            (objects("", "", "services", ""), false),
            (objects("get", "", "*", ""), false),
            (objects("get", "other", "services", ""), false),
            (objects("get", "", "services", "status"), false),
            (path("get", "/api"), true),
            (path("get", "/api/v1"), true),
            (path("get", "/apis"), false),
            (path("post", "/api"), false),
        ] {
            assert_eq!(answer(Resource::AccessReview, &spec).unwrap(), json!({"allowed": allowed}), "{spec}");
        }
        for spec in [json!({}), json!({"resourceAttributes": {}, "nonResourceAttributes": {}})] {
            let error = answer(Resource::AccessReview, &spec).unwrap_err();
            assert!(error.code() == 422 && error.to_string().contains("exactly one"), "{error}");
        }
        let long = "x".repeat(100_000);
        let both = json!({"resourceAttributes": {"verb": long}, "nonResourceAttributes": {"path": long}});
        let error = answer(Resource::AccessReview, &both).unwrap_err().to_string();
        assert!(error.contains("resourceAttributes") && error.len() < 1000, "{} bytes", error.len());
        let mut wrong = json!({"kind": long}).as_object().unwrap().clone();
        let error = check_kind(Resource::AccessReview, &mut wrong).unwrap_err().to_string();
        assert!(error.contains("xxx") && error.len() < 1000, "{} bytes", error.len());
    }

    #[test]
    fn a_selector_is_a_text_or_requirements() {
        let one = |selector: Value| json!({"requirements": [selector]});
        let both = json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]});
        let in_a_set = json!({"key": "a", "operator": "In", "values": ["b"]});
        for (name, selector, fault) in [
            ("fieldSelector", json!({}), "requirements: Required"),
            ("labelSelector", json!({"rawSelector": ""}), "requirements: Required"),
            ("fieldSelector", both.clone(), "rawSelector: Invalid value: \"a=b\""),
            ("labelSelector", both, "rawSelector: Invalid value: \"a=b\""),
            ("fieldSelector", one(json!({"operator": "Exists"})), "requirements[0].key: Required"),
            ("labelSelector", one(json!({"operator": "Exists"})), "requirements[0].key: Invalid"),
            ("fieldSelector", one(json!({"key": "a", "operator": "In"})), "requirements[0].values: Required"),
            (
                "labelSelector",
                one(json!({"key": "a", "operator": "DoesNotExist", "values": ["b"]})),
                "requirements[0].values: Forbidden",
            ),
            (
                "labelSelector",
                one(json!({"key": "a", "operator": "NotIn", "values": ["b", "-"]})),
                "requirements[0].values[1]: Invalid",
            ),
        ] {
            let spec = json!({"resourceAttributes": {(name): selector}});
            let error = answer(Resource::AccessReview, &spec).unwrap_err();
            let expected = format!(" is invalid: spec.resourceAttributes.{name}.{fault}");
            assert!(error.code() == 422 && error.to_string().contains(&expected), "{spec}: {error}");
        }
        let unknown = json!({"key": "a", "operator": "New"});
        for selector in [json!({"rawSelector": "a=b"}), one(in_a_set), one(unknown)] {
            for name in ["fieldSelector", "labelSelector"] {
                let mut objects = json!({"verb": "get", "resource": "services"});
                objects[name] = selector.clone();
                let status = answer(Resource::AccessReview, &json!({"resourceAttributes": objects})).unwrap();
                assert_eq!(status, json!({"allowed": true}), "{name} {selector}");
            }
        }
        let many = json!({"requirements": vec![json!({"values": vec!["-"; 200]}); 200]});
        let error = answer(Resource::AccessReview, &json!({"resourceAttributes": {"labelSelector": many}}));
        let ApiError::Invalid { errors, .. } = error.unwrap_err() else { panic!("another error") };
        assert_eq!(errors.len(), MOST_ERRORS);
    }

    #[test]
    fn a_star_allows_everything() {
        let rule = Rule::Resources { verbs: &["*"], groups: &["*"], resources: &["*"] };
        let target = Target::Resource {
            group: "a".to_owned(),
            version: "v1".to_owned(),
            resource: "b".to_owned(),
            subresource: "status".to_owned(),
            namespace: String::new(),
            name: String::new(),
        };
        for verb in ["get", "*", "dance"] {
            assert!(rule.allows(&Attributes { verb: verb_named(verb), target: target.clone() }), "{verb}");
        }
        assert!(!rule.allows(&Attributes { verb: "get", target: Target::Path("/metrics".to_owned()) }));
        let all = Rule::Paths { verbs: &["*"], paths: &["*"] };
        assert!(all.allows(&Attributes { verb: "get", target: Target::Path("/metrics".to_owned()) }));
    }

    #[test]
    fn rules_and_the_user_are_reported() {
        let rules = answer(Resource::RulesReview, &json!({"namespace": "default"})).unwrap();
        assert_eq!(
            rules,
            json!({
                "resourceRules": [{"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["services"]}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*"]}],
                "incomplete": false,
            })
        );
        for without in [json!({}), json!({"spec": {}}), json!({"metadata": {"namespace": "default"}})] {
            let error = completed(Resource::RulesReview, without).unwrap_err();
            assert_eq!((error.code(), error.reason()), (400, "BadRequest"));
        }
        let user = answer(Resource::SelfReview, &json!({})).unwrap();
        assert_eq!(user, json!({"userInfo": {"username": "eve", "groups": ["readers"]}}));
    }

    #[test]
    fn metadata_is_refused_or_dropped() {
        let spec =
            json!({"resourceAttributes": {"verb": "get", "resource": "services"}, "namespace": "default"});
        let with = |metadata: Value| json!({"metadata": metadata, "spec": spec});
        for metadata in [json!({"name": "a"}), json!({"labels": {"a": "b"}}), json!({"resourceVersion": "1"})]
        {
            let error = completed(Resource::AccessReview, with(metadata.clone())).unwrap_err();
            assert!(error.code() == 422 && error.to_string().contains("metadata: Invalid value"), "{error}");
            let rules = completed(Resource::RulesReview, with(metadata.clone())).unwrap();
            assert_eq!((&rules["metadata"], &rules["spec"]), (&json!({}), &json!({})));
            let user = completed(Resource::SelfReview, with(metadata)).unwrap();
            let user = user["metadata"].as_object().unwrap();
            assert!(user.len() == 1 && user.contains_key("creationTimestamp"), "{user:?}");
        }
        let dropped = json!({"uid": "1", "namespace": "a", "managedFields": [{}], "creationTimestamp": null});
        let answer = completed(Resource::AccessReview, with(dropped)).unwrap();
        assert_eq!((&answer["metadata"], &answer["spec"]), (&json!({}), &spec));
        let both = json!({"metadata": {"name": "a"}, "spec": {}});
        let error = completed(Resource::AccessReview, both).unwrap_err().to_string();
        assert!(error.contains("exactly one") && error.contains("must be empty"), "{error}");
    }
}
