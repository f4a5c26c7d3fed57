//! Features that only the rules of some Services need. A node may lack the kernel's module, or the program's extension, for one.
//!
//! One rule that is refused makes the restore of all Services fail. So what a Service needs is tried before its rules are
//! written: at a full load again if it was missing, and before a change if it was never tried. A feature that works is not
//! tried again.

use std::borrow::Borrow;

use portolan_model::{Forwarding, Protocol};

use super::program::Error;
use super::rule::IptablesTable;
use super::{IptablesOptions, Meter, Programs};

/// A rule that only Services with session affinity need.
pub(super) const OF_AFFINITY: &str =
    "-m recent --name KUBE-PROXY-TRIAL --rcheck --seconds 1 --reap -j RETURN";
/// A rule that only Service ports of SCTP need.
const OF_SCTP: &str = "-m sctp -p sctp --dport 1 -j RETURN";

/// What Services need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Needs {
    affinity: bool,
    sctp: bool,
}

impl Needs {
    pub(super) fn of(forwardings: impl Iterator<Item = impl Borrow<Forwarding>>) -> Self {
        forwardings.fold(Self::default(), |needs, forwarding| {
            let forwarding = forwarding.borrow();
            Self {
                affinity: needs.affinity || forwarding.affinity.is_some(),
                sctp: needs.sctp || forwarding.protocol == Protocol::Sctp,
            }
        })
    }
}

/// What was tried, and whether it worked.
#[derive(Debug, Default)]
pub(super) struct Features {
    affinity: Option<bool>,
    sctp: Option<bool>,
}

impl Features {
    /// Returns true if nothing has to be tried any more.
    pub(super) fn are_complete(&self) -> bool {
        (self.affinity, self.sctp) == (Some(true), Some(true))
    }

    /// Forgets what did not work, so that it is tried again.
    pub(super) fn forget_failures(&mut self) {
        for feature in [&mut self.affinity, &mut self.sctp] {
            *feature = feature.filter(|works| *works);
        }
    }

    /// Tries what is needed and was not tried. An error means that the tables cannot be written at the moment.
    pub(super) fn ensure(&mut self, needs: Needs, programs: &Programs, meter: &Meter) -> Result<(), Error> {
        if needs.affinity && self.affinity.is_none() {
            self.affinity = Some(works(OF_AFFINITY, programs, meter)?);
        }
        if needs.sctp && self.sctp.is_none() {
            self.sctp = Some(works(OF_SCTP, programs, meter)?);
        }
        Ok(())
    }

    /// Returns the options for a node with these features. What was not tried is not needed.
    pub(super) fn options(&self, options: IptablesOptions) -> IptablesOptions {
        IptablesOptions {
            affinity: self.affinity.unwrap_or(true),
            sctp: self.sctp.unwrap_or(true),
            ..options
        }
    }
}

fn works(rule: &str, programs: &Programs, meter: &Meter) -> Result<bool, Error> {
    let refusal = programs.try_rule(IptablesTable::Nat, rule, meter)?;
    if let Some(error) = &refusal {
        tracing::warn!(rule, %error, "iptables or the kernel refuses rules of this kind: Services that need them are left out, or have no session affinity");
    }
    Ok(refusal.is_none())
}
