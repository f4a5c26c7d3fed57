//! The folder `pki`: the server's own certificate authority (CA), its certificate, and the hashes of tokens.
//!
//! `ca.key` is written before `ca.crt`, and `server.key` before `server.crt`. Each file is written under a temporary
//! name first, and all writes happen under a lock. A crash therefore leaves nothing, a key without a certificate, or
//! a certificate of another key. The next start repairs each of these states.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{Issuer, KeyPair};
use thiserror::Error;

use super::authorization::Role;
use super::certificate::{self, Facts, LIFE, Pair, Purpose};
use super::stamp::{self, Owner};
use super::tokens;

/// Why the folder cannot be used.
#[derive(Debug, Error)]
pub enum PkiError {
    /// A file, or the folder itself, cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The key of the CA certificate is missing or belongs to another certificate.
    #[error(
        "{}: ca.crt and ca.key do not belong together; put the right ones back, or remove both to begin with a new authority, which no client knows yet",
        .0.display()
    )]
    Authority(PathBuf),
    /// The CA certificate has expired.
    #[error("{}: the certificate has ended; remove it and make new kubeconfigs for all clients", .0.display())]
    Ended(PathBuf),
    /// No certificate can be issued for a name.
    #[error("no certificate can be made: {0}; check the names, among them those of --tls-san")]
    Certificate(#[from] rcgen::Error),
    /// A user's name is invalid.
    #[error("the name {0:?} has to be of 1 to 64 characters, none of which is a control character")]
    Name(String),
    /// The kernel returned no random numbers.
    #[error("the kernel gives no random numbers")]
    Random,
}

/// The folder, which contains a CA.
#[derive(Debug, Clone)]
pub struct Pki {
    folder: PathBuf,
}

/// The credentials of a client.
pub struct ClientFiles {
    /// The certificate as PEM.
    pub certificate: String,
    /// The private key as PEM.
    pub key: String,
}

impl Pki {
    /// Opens the folder. Creates the folder and a CA in it if they are missing.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, PkiError> {
        let pki = Self { folder: folder.into() };
        if !pki.folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(&pki.folder).map_err(at(&pki.folder))?;
            stamp::inherit_owner(&pki.folder).map_err(at(&pki.folder))?;
        }
        pki.make_private()?;
        let _lock = pki.lock()?;
        pki.authority(SystemTime::now())?;
        Ok(pki)
    }

    /// Returns the CA certificate as PEM, for clients to trust.
    pub fn authority_certificate(&self) -> Result<String, PkiError> {
        self.read("ca.crt")
    }

    /// Issues a certificate for a client.
    pub fn issue_client(&self, role: Role, user: &str) -> Result<ClientFiles, PkiError> {
        check_name(user)?;
        let _lock = self.lock()?;
        let pair = self.issue(Purpose::Client { user, group: role.group() }, SystemTime::now())?;
        Ok(ClientFiles { certificate: pair.certificate, key: pair.key })
    }

    /// Issues a token for a client. Stores only its hash.
    pub fn issue_token(&self, role: Role, user: &str) -> Result<String, PkiError> {
        check_name(user)?;
        let _lock = self.lock()?;
        let (token, line) = tokens::issue(user, role.group()).ok_or(PkiError::Random)?;
        let before = self.read_if_there("tokens")?.unwrap_or_default();
        self.write("tokens", &(before + &line))?;
        Ok(token)
    }

    /// Returns the server's certificate and key. Issues new ones if those in the folder are missing, do not match,
    /// are from another CA, lack one of `names`, or have less than a third of their lifetime left.
    pub(super) fn server(&self, names: &[String], now: SystemTime) -> Result<Pair, PkiError> {
        if let Some(pair) = self.good_server(names, now)? {
            return Ok(pair);
        }
        let _lock = self.lock()?;
        // Another process may have issued it in the meantime.
        if let Some(pair) = self.good_server(names, now)? {
            return Ok(pair);
        }
        let pair = self.issue(Purpose::Server { names }, now)?;
        // The disk may be full. A certificate that is valid serves until there is room.
        let stored = self.stored_server(names, |facts| facts.is_valid(now))?;
        let written =
            self.write("server.key", &pair.key).and_then(|()| self.write("server.crt", &pair.certificate));
        if let Err(error) = written {
            let Some(stored) = stored else { return Err(error) };
            tracing::warn!(%error, "the server's certificate cannot be renewed yet");
            if self.read("server.key")? != stored.key {
                self.write("server.key", &stored.key)?;
            }
            return Ok(stored);
        }
        tracing::info!(folder = %self.folder.display(), ?names, "a new certificate for the server");
        Ok(pair)
    }

    /// Returns the stored certificate and key of the server if they are usable, and not due for renewal.
    fn good_server(&self, names: &[String], now: SystemTime) -> Result<Option<Pair>, PkiError> {
        self.stored_server(names, |facts| !facts.is_old(now))
    }

    /// Returns the stored certificate and key of the server if they are usable at this time.
    fn stored_server(
        &self,
        names: &[String],
        is_in_time: impl Fn(&Facts) -> bool,
    ) -> Result<Option<Pair>, PkiError> {
        let authority = Facts::of_pem(&self.read("ca.crt")?);
        let stored = match (self.read_if_there("server.crt")?, self.read_if_there("server.key")?) {
            (Some(certificate), Some(key)) => Some(Pair { certificate, key }),
            _ => None,
        };
        let is_good = |pair: &Pair| {
            let facts = Facts::of_pem(&pair.certificate)?;
            let fits = facts.is_of(&KeyPair::from_pem(&pair.key).ok()?)
                && names.iter().all(|name| facts.names.contains(name))
                && is_in_time(&facts)
                && pair.is_of_authority(authority.as_ref()?);
            Some(fits)
        };
        Ok(stored.filter(|pair| is_good(pair) == Some(true)))
    }

    /// Returns the file with the hashes of the server's own tokens.
    pub(super) fn tokens(&self) -> Result<String, PkiError> {
        Ok(self.read_if_there("tokens")?.unwrap_or_default())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn issue(&self, purpose: Purpose<'_>, now: SystemTime) -> Result<Pair, PkiError> {
        let (key, certificate) = self.authority(now)?;
        let end = Facts::of_pem(&certificate).map_or(now, |facts| facts.not_after);
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
        // No certificate outlives its CA.
        let mut pair = certificate::issue(&issuer, purpose, now, end.min(now + LIFE))?;
        if matches!(purpose, Purpose::Server { .. }) {
            pair.certificate.push_str(&certificate);
        }
        Ok(pair)
    }

    /// Returns the CA's key and certificate. Creates what is missing.
    fn authority(&self, now: SystemTime) -> Result<(KeyPair, String), PkiError> {
        let key = self.read_if_there("ca.key")?;
        let certificate = self.read_if_there("ca.crt")?;
        let mismatch = || PkiError::Authority(self.folder.clone());
        let key = match key {
            Some(key) => KeyPair::from_pem(&key).map_err(|_| mismatch())?,
            None if certificate.is_some() => return Err(mismatch()),
            None => {
                let key = KeyPair::generate()?;
                self.write("ca.key", &key.serialize_pem())?;
                key
            }
        };
        if let Some(certificate) = certificate {
            let facts = Facts::of_pem(&certificate).filter(|facts| facts.is_of(&key)).ok_or_else(mismatch)?;
            if facts.not_after <= now {
                return Err(PkiError::Ended(self.path("ca.crt")));
            }
            if now < facts.not_before {
                tracing::warn!(
                    "the certificate authority is not valid yet; if the clock is right, remove ca.crt to have it renewed"
                );
            } else if facts.is_old(now) {
                let days = facts.days_left(now);
                tracing::warn!(days, "the certificate authority ends; remove ca.crt to have it renewed");
            }
            return Ok((key, certificate));
        }
        let certificate = certificate::authority(&key, now)?;
        self.write("ca.crt", &certificate)?;
        tracing::info!(folder = %self.folder.display(), "a new certificate authority");
        Ok((key, certificate))
    }

    /// Locks the folder while files are written, so that processes that start together create one CA.
    fn lock(&self) -> Result<File, PkiError> {
        let path = self.path("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(at(&path))?;
        stamp::inherit_owner(&path).map_err(at(&path))?;
        file.lock().map_err(at(&path))?;
        Ok(file)
    }

    /// Removes the permissions of other users.
    fn make_private(&self) -> Result<(), PkiError> {
        let names = ["", "ca.key", "server.key", "tokens"];
        for path in names.map(|name| if name.is_empty() { self.folder.clone() } else { self.path(name) }) {
            let Ok(found) = fs::metadata(&path) else { continue };
            let mode = found.permissions().mode();
            if mode & 0o077 != 0 {
                tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "others had access to this; taken away");
                let private = fs::Permissions::from_mode(mode & 0o700);
                fs::set_permissions(&path, private).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<String, PkiError> {
        let path = self.path(name);
        stamp::read(&path).map_err(at(&path))
    }

    fn read_if_there(&self, name: &str) -> Result<Option<String>, PkiError> {
        match self.read(name) {
            Ok(text) => Ok(Some(text)),
            Err(PkiError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), PkiError> {
        let path = self.path(name);
        stamp::write(&path, text, Owner::Folder).map_err(at(&path))
    }
}

impl Pair {
    /// Returns true if the CA's certificate follows the server's, as [`Pki::issue`] writes it.
    fn is_of_authority(&self, authority: &Facts) -> bool {
        use rustls::pki_types::{CertificateDer, pem::PemObject as _};
        let mut chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).skip(1);
        let issuer = chain.next().and_then(Result::ok);
        issuer.is_some_and(|issuer| Facts::of(&issuer).as_ref() == Some(authority))
    }
}

/// Checks the length, for which X.509 allows 64 characters in a common name (`ub-common-name`, RFC 5280), and refuses
/// control characters.
fn check_name(name: &str) -> Result<(), PkiError> {
    let good = (1..=64).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    if good { Ok(()) } else { Err(PkiError::Name(name.to_owned())) }
}

fn at(path: &Path) -> impl Fn(io::Error) -> PkiError + '_ {
    |source| PkiError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
