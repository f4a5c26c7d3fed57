//! Bearer tokens: Kubernetes' static token file, and the server's own file, which contains only hashes.
//!
//! A line is `token,user,uid`, optionally followed by `"group,group"`. In the own file the first field is `sha256:`
//! and the hash.

use std::fmt;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

use super::authorization::{Identity, Role};

type Hash = [u8; 32];

/// Number of random bytes in a token: 256 bits, as in a SHA-256 hash.
const TOKEN_BYTES: usize = 32;
const HASH_PREFIX: &str = "sha256:";

/// Hashes of tokens with their identities.
#[derive(Debug, Default)]
pub(super) struct Tokens(Vec<(Hash, Identity)>);

/// The token of a client in the process of the server. It is in no file, and valid as long as the process runs.
#[derive(Clone)]
pub struct ProcessToken {
    token: String,
    identity: Identity,
}

impl ProcessToken {
    /// Creates a token for the default user of a role. Returns `None` if the kernel returns no random numbers.
    pub fn new(role: Role) -> Option<Self> {
        let identity =
            Identity { user: role.default_user().to_owned(), groups: vec![role.group().to_owned()] };
        Some(Self { token: random()?, identity })
    }

    /// Returns the token. It is secret.
    pub(super) fn text(&self) -> &str {
        &self.token
    }

    /// Returns the user.
    pub(super) fn user(&self) -> &str {
        &self.identity.user
    }

    /// Returns what the server accepts.
    pub(super) fn accepted(&self) -> Tokens {
        Tokens(vec![(hash(&self.token), self.identity.clone())])
    }
}

impl fmt::Debug for ProcessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessToken").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// How a file stores its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In plain text (`--token-auth-file`).
    Plain,
    /// As hashes.
    Hashed,
}

/// An invalid line of a token file.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct TokenFileError {
    line: usize,
    reason: &'static str,
}

impl Tokens {
    /// Parses a token file. If a token occurs twice, the first line counts.
    pub(super) fn parse(text: &str, form: Form) -> Result<Self, TokenFileError> {
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let entries = lines.map(|(line, number)| {
            entry(line, form).map_err(|reason| TokenFileError { line: number, reason })
        });
        entries.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the identity of a token. Compares every byte of every entry, so that the duration reveals nothing.
    pub(super) fn find(&self, token: &str) -> Option<&Identity> {
        let hash = hash(token);
        self.0.iter().fold(None, |found, (known, identity)| {
            let same = is_same(known, &hash);
            found.or(same.then_some(identity))
        })
    }

    /// Adds the tokens of another file.
    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// Creates a token and its line for the own file. Returns `None` if the kernel returns no random numbers.
pub(super) fn issue(user: &str, group: &str) -> Option<(String, String)> {
    let token = random()?;
    let line = format!("{HASH_PREFIX}{},{},,{}\n", hex(&hash(&token)), quoted(user), quoted(group));
    Some((token, line))
}

/// Returns a new token. Returns `None` if the kernel returns no random numbers.
fn random() -> Option<String> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(hex(&bytes))
}

fn entry(line: &str, form: Form) -> Result<(Hash, Identity), &'static str> {
    let fields = fields(line).ok_or("a quotation mark is not closed or stands inside a field")?;
    let [token, user, _uid, rest @ ..] = fields.as_slice() else {
        return Err("fewer than three fields; write token,user,uid,\"group,group\"");
    };
    if token.is_empty() || user.is_empty() {
        return Err("the token or the user is empty");
    }
    let hash = match form {
        Form::Plain => hash(token),
        Form::Hashed => token
            .strip_prefix(HASH_PREFIX)
            .and_then(unhex)
            .ok_or("the first field is not sha256: and a hash")?,
    };
    let groups = rest.first().map(|groups| groups.split(',').map(str::trim)).into_iter().flatten();
    let groups = groups.filter(|group| !group.is_empty()).map(str::to_owned).collect();
    Ok((hash, Identity { user: user.clone(), groups }))
}

/// Splits a line of CSV into its fields (RFC 4180). Returns `None` if its quotation marks are invalid.
fn fields(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = line.trim_end_matches('\r');
    loop {
        let (field, behind) = if let Some(quoted) = rest.trim_start().strip_prefix('"') {
            quoted_field(quoted)?
        } else {
            let (field, behind) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
            if field.contains('"') {
                return None;
            }
            (field.trim().to_owned(), behind)
        };
        fields.push(field);
        if behind.is_empty() {
            return Some(fields);
        }
        rest = behind.strip_prefix(',')?;
    }
}

/// Returns the text up to the closing quotation mark, and the rest of the line. Two marks stand for one.
fn quoted_field(mut rest: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    loop {
        let (text, behind) = rest.split_once('"')?;
        field.push_str(text);
        let Some(more) = behind.strip_prefix('"') else { return Some((field, behind.trim_start())) };
        field.push('"');
        rest = more;
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn hash(token: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

/// Compares in constant time.
fn is_same(left: &Hash, right: &Hash) -> bool {
    left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(tokens: &Tokens, token: &str) -> Option<(String, Vec<String>)> {
        tokens.find(token).map(|identity| (identity.user.clone(), identity.groups.clone()))
    }

    #[test]
    fn lines_of_a_static_token_file() {
        let text = "\n31ada4fd,alice,1,\"dev, ops\"\r\n,\nt2,bob,2\n\"t,3\",\"say \"\"hi\"\"\",3,one\n";
        assert_eq!(Tokens::parse(text, Form::Plain).unwrap_err().line, 3);
        let tokens = Tokens::parse(&text.replace(",\n", "\n").replace("\n\n", "\n"), Form::Plain).unwrap();
        let owned = |groups: &[&str]| groups.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        assert_eq!(groups(&tokens, "31ada4fd"), Some(("alice".to_owned(), owned(&["dev", "ops"]))));
        assert_eq!(groups(&tokens, "t2"), Some(("bob".to_owned(), vec![])));
        assert_eq!(groups(&tokens, "t,3"), Some(("say \"hi\"".to_owned(), owned(&["one"]))));
        assert_eq!((groups(&tokens, ""), groups(&tokens, "31ada4f")), (None, None));
    }

    #[test]
    fn lines_that_cannot_be_used() {
        for text in ["a", "a,b", "a,,c", ",b,c", "a,\"b,c", "a,b\"c,d", "\"a\"b,c,d"] {
            assert!(Tokens::parse(text, Form::Plain).is_err(), "{text}");
        }
        for text in ["a,b,c", "sha256:00,b,c", "sha256:,b,c"] {
            assert!(Tokens::parse(text, Form::Hashed).is_err(), "{text}");
        }
    }

    #[test]
    fn the_own_file_has_no_token_in_it() {
        let (token, line) = issue("eve \"x\"", "system:masters").unwrap();
        assert!(token.len() == 64 && !line.contains(&token), "{line}");
        let mut tokens = Tokens::default();
        tokens.extend(Tokens::parse(&line, Form::Hashed).unwrap());
        let expected = ("eve \"x\"".to_owned(), vec!["system:masters".to_owned()]);
        assert_eq!(groups(&tokens, &token), Some(expected));
        // The hash is not a valid token.
        let hash = line.split([':', ',']).nth(1).unwrap();
        assert_eq!(groups(&tokens, hash), None);
        assert_ne!(issue("a", "b").unwrap().0, token);
    }

    #[test]
    fn the_token_of_the_process_is_in_no_text() {
        let (token, other) =
            (ProcessToken::new(Role::Proxy).unwrap(), ProcessToken::new(Role::Proxy).unwrap());
        let user = Some(("system:kube-proxy".to_owned(), vec!["system:node-proxier".to_owned()]));
        assert_eq!(groups(&token.accepted(), token.text()), user);
        assert_eq!(groups(&token.accepted(), other.text()), None);
        assert!(!format!("{token:?}").contains(token.text()));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = Tokens::parse(&text, Form::Plain);
            let _ = Tokens::parse(&text, Form::Hashed);
        }

        #[test]
        fn an_issued_token_is_found(user in "[^\r\n]{1,20}", group in "[a-z:]{1,20}") {
            prop_assume!(!user.is_empty());
            let (token, line) = issue(&user, &group).unwrap();
            let tokens = Tokens::parse(&line, Form::Hashed).unwrap();
            prop_assert_eq!(&tokens.find(&token).unwrap().user, &user);
        }
    }
}
