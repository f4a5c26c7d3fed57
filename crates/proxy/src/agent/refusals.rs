//! Service ports that could not be programmed. Each is reported once, not after each commit that repeats the refusal.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_engine::{Extent, Refusal};
use portolan_model::ServicePortName;

use super::Agent;
use crate::reports::Synced;

/// A family's refusals that have been reported and still stand.
#[derive(Debug, Default)]
pub(super) struct Reported(Vec<Refusal>);

impl Reported {
    /// Returns the refusals that still stand.
    pub(super) fn all(&self) -> &[Refusal] {
        &self.0
    }

    /// Stores the refusals of a commit and returns the new ones. `changed` are the Service ports of the commit,
    /// `None` all of them. A Service port that the commit covers and does not refuse is programmed: its refusal is
    /// dropped.
    fn take(
        &mut self,
        refused: &[Refusal],
        changed: Option<&BTreeSet<Arc<ServicePortName>>>,
    ) -> Vec<Refusal> {
        let new: Vec<Refusal> = refused.iter().filter(|refusal| !self.0.contains(refusal)).cloned().collect();
        self.0.retain(|reported| {
            refused.contains(reported) || changed.is_some_and(|changed| !changed.contains(&reported.name))
        });
        self.0.extend_from_slice(&new);
        new
    }
}

impl Agent {
    /// Reports Service ports that cannot be programmed: one log message and one Event each.
    pub(super) fn report_refusals(&mut self, step: &Synced) {
        let family = step.family;
        let changed = (!step.full).then_some(&step.changed);
        for Refusal { name, reason, extent } in self.refused.get_mut(family).take(&step.refused, changed) {
            let (namespace, service, port) = (&*name.namespace, &*name.service, &*name.port);
            match extent {
                Extent::Whole => {
                    tracing::error!(namespace, service, port, %family, reason, "this Service port cannot be programmed");
                    self.notes.not_programmed(&name, reason);
                }
                Extent::Endpoints => {
                    tracing::error!(namespace, service, port, %family, reason, "not every endpoint of this Service port is used");
                    self.notes.endpoints_left_out(&name, reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    fn name(service: &str) -> Arc<ServicePortName> {
        let (namespace, service, port) = ("n".into(), service.into(), "p".into());
        Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
    }

    fn refusal(service: &str, reason: &'static str) -> Refusal {
        Refusal { name: name(service), reason, extent: Extent::Whole }
    }

    #[test]
    fn a_refusal_is_reported_again_after_it_was_resolved() {
        let mut reported = Reported::default();
        let (a, b) = (refusal("a", "too many"), refusal("b", "too many"));
        let mut take = |refused: &[&Refusal], changed: Option<&[&str]>| {
            let refused: Vec<Refusal> = refused.iter().map(|refusal| (*refusal).clone()).collect();
            let changed =
                changed.map(|changed| changed.iter().map(|service| name(service)).collect::<BTreeSet<_>>());
            reported.take(&refused, changed.as_ref())
        };
        assert_eq!(take(&[&a], Some(&["a"])), std::slice::from_ref(&a));
        assert_eq!(take(&[&a], Some(&["a"])), [], "the same");
        assert_eq!(take(&[&b], Some(&["b"])), std::slice::from_ref(&b));
        assert_eq!(take(&[], Some(&["b", "c"])), [], "b is mended");
        assert_eq!(take(&[&a, &b], Some(&["b"])), std::slice::from_ref(&b), "a was not touched");
        let other = refusal("a", "full");
        assert_eq!(take(&[&other], Some(&["a"])), std::slice::from_ref(&other), "another reason");
        // A full comparison names all refusals.
        assert_eq!(take(&[&other, &b], None), []);
        assert_eq!(take(&[], None), []);
        assert_eq!(take(&[&other], Some(&[])), std::slice::from_ref(&other));
    }
}
