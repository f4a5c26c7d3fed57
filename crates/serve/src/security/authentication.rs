//! Authentication: by the certificate of the connection first, then by the bearer token of the request.

use http::{HeaderMap, header};

use super::authorization::Identity;
use super::tokens::Tokens;

/// The request carries no valid credential. The reason is for the log, not for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unauthorized(pub(crate) String);

/// Returns the identity of a request. `certificate` is the result of checking the connection's certificate; `None` if
/// it has none. Headers that name a user, such as X-Remote-User, are ignored.
pub(super) fn identify(
    certificate: Option<Result<Identity, Unauthorized>>,
    headers: &HeaderMap,
    tokens: &Tokens,
) -> Result<Identity, Unauthorized> {
    let rejected = match certificate {
        Some(Ok(identity)) => return Ok(identity),
        Some(Err(rejected)) => Some(rejected),
        None => None,
    };
    match bearer(headers) {
        Some(token) => tokens
            .find(token)
            .cloned()
            .ok_or_else(|| Unauthorized("the bearer token is not known".to_owned())),
        None => Err(rejected.unwrap_or_else(|| Unauthorized("neither certificate nor token".to_owned()))),
    }
}

/// Returns the token of a request that has exactly one Authorization header, with the scheme Bearer.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::tokens::Form;
    use super::*;

    fn identity(user: &str) -> Identity {
        Identity { user: user.to_owned(), groups: Vec::new() }
    }

    fn user(
        certificate: Option<Result<Identity, Unauthorized>>,
        lines: &[(&'static str, &str)],
    ) -> Option<String> {
        let tokens = Tokens::parse("secret,alice,1", Form::Plain).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        identify(certificate, &headers, &tokens).ok().map(|identity| identity.user)
    }

    #[test]
    fn certificates_come_first_and_tokens_count_alone() {
        let good = || Some(Ok(identity("cert")));
        let bad = || Some(Err(Unauthorized(String::new())));
        let token = ("authorization", "Bearer secret");
        assert_eq!(user(good(), &[token]).as_deref(), Some("cert"));
        assert_eq!(user(bad(), &[token]).as_deref(), Some("alice"));
        assert_eq!(user(None, &[("authorization", "bearer  secret ")]).as_deref(), Some("alice"));
        assert_eq!(user(bad(), &[]), None);
        assert_eq!(user(None, &[]), None);
    }

    #[test]
    fn requests_without_a_valid_credential() {
        for lines in [
            &[("authorization", "Bearer wrong")][..],
            &[("authorization", "Bearer ")],
            &[("authorization", "Basic secret")],
            &[("authorization", "secret")],
            &[("authorization", "Bearer secret"), ("authorization", "Bearer secret")],
            &[("x-remote-user", "alice"), ("x-remote-group", "system:masters")],
            &[("impersonate-user", "alice")],
        ] {
            assert_eq!(user(None, lines), None, "{lines:?}");
        }
    }
}
