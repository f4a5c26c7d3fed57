//! X.509 certificates: issues them and reads their content.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Lifetimes, as in kubeadm: ten years for a CA, one year for the certificates it issues.
pub(super) const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * 24 * 60 * 60);
pub(super) const LIFE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Certificates become valid this long before they are issued. Clients' clocks may be behind, and this host's own may be
/// ahead until it is set after the boot.
const CLOCK_SKEW: Duration = DAY;

/// The purpose of a new certificate.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose<'a> {
    /// For a server with these names and addresses.
    Server { names: &'a [String] },
    /// For a client that is this user and a member of this group.
    Client { user: &'a str, group: &'a str },
}

/// A certificate and its private key, both as PEM.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The content of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The common name.
    pub(super) user: Option<String>,
    /// The organizations.
    pub(super) groups: Vec<String>,
    /// DNS names and addresses.
    pub(super) names: Vec<String>,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
    public_key: Vec<u8>,
}

/// Creates a self-signed CA certificate for a key.
pub(super) fn authority(key: &KeyPair, now: SystemTime) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "portolan");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + AUTHORITY_LIFE).into();
    Ok(params.self_signed(key)?.pem())
}

/// Issues a certificate with a new key, valid until `until`.
pub(super) fn issue(
    authority: &Issuer<'_, KeyPair>,
    purpose: Purpose<'_>,
    now: SystemTime,
    until: SystemTime,
) -> Result<Pair, rcgen::Error> {
    let (mut params, usage, user, group) = match purpose {
        Purpose::Server { names } => {
            let params = CertificateParams::new(names.to_vec())?;
            (params, ExtendedKeyUsagePurpose::ServerAuth, "portolan-server", None)
        }
        Purpose::Client { user, group } => {
            (CertificateParams::default(), ExtendedKeyUsagePurpose::ClientAuth, user, Some(group))
        }
    };
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = until.into();
    let key = KeyPair::generate()?;
    Ok(Pair { certificate: params.signed_by(&key, authority)?.pem(), key: key.serialize_pem() })
}

impl Facts {
    /// Reads the first certificate of a PEM file.
    pub(super) fn of_pem(pem: &str) -> Option<Self> {
        Self::of(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
    }

    /// Reads a certificate. Does not check signatures.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().ok().map(str::to_owned)
        };
        let subject = parsed.subject();
        let validity = parsed.validity();
        Some(Self {
            user: subject.iter_common_name().last().and_then(text),
            groups: subject.iter_organization().filter_map(text).collect(),
            names: names(&parsed),
            not_before: time(validity.not_before.timestamp()),
            not_after: time(validity.not_after.timestamp()),
            public_key: parsed.public_key().raw.to_vec(),
        })
    }

    /// Returns true if the certificate is for this key.
    pub(super) fn is_of(&self, key: &KeyPair) -> bool {
        use rcgen::PublicKeyData as _;
        self.public_key == key.subject_public_key_info()
    }

    /// Returns true if less than a third of the lifetime is left, or the certificate is not yet valid.
    pub(super) fn is_old(&self, now: SystemTime) -> bool {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        let left = self.not_after.duration_since(now).unwrap_or_default();
        left < life / 3 || now < self.not_before
    }

    /// Returns true if the certificate is valid now.
    pub(super) fn is_valid(&self, now: SystemTime) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Returns the number of days until the certificate expires.
    pub(super) fn days_left(&self, now: SystemTime) -> u64 {
        self.not_after.duration_since(now).unwrap_or_default().as_secs() / DAY.as_secs()
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names);
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from)).ok()?;
            Some(address.to_string())
        }
        _ => None,
    };
    names.filter_map(text).collect()
}

fn time(seconds: i64) -> SystemTime {
    // Times before 1970 count as 1970.
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
