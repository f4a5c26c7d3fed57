//! A table of the kernel as it is: chains with rules, sets with elements.

use std::collections::HashMap;

use portolan_engine::drift::generation;
use portolan_sock::{Socket, SocketError};
use portolan_wire::nftables::{self as wire, Chain, Element, NftablesEvent, Rule, request};

use super::super::super::chain::FamilyTable;
use super::super::super::readback::{self, Outline};

/// A table.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) chains: HashMap<String, Chain>,
    rules: HashMap<String, Vec<Rule>>,
    sets: HashMap<String, wire::Set>,
    elements: HashMap<String, Vec<Element>>,
}

impl Raw {
    /// Reads a table. Returns `None` if it does not exist, and [`SocketError::Interrupted`] if it changed meanwhile.
    pub(super) fn read(socket: &mut Socket, place: FamilyTable) -> Result<Option<Self>, SocketError> {
        let before = generation(socket)?;
        if readback::table(socket, place)?.is_none() {
            return Ok(None);
        }
        let mut raw = Self::of(readback::outline(socket, place)?, HashMap::new());
        // Clients are in the sets of session affinity. Only their timeouts are of use.
        let names = raw.sets.keys().filter(|name| !name.starts_with(super::chains::AFFINITY));
        let names: Vec<String> = names.cloned().collect();
        for name in names {
            let elements = raw.elements.entry(name.clone()).or_default();
            socket.dump(&mut request::elements(place.wire(), place.table, &name), |frame| {
                if let NftablesEvent::NewElements(list) = NftablesEvent::decode(frame)? {
                    for element in list.elements() {
                        elements.push(element?.to_owned());
                    }
                }
                Ok(())
            })?;
        }
        if generation(socket)? == before { Ok(Some(raw)) } else { Err(SocketError::Interrupted) }
    }

    /// Joins an outline with the elements of its sets.
    pub(super) fn of(outline: Outline, elements: HashMap<String, Vec<Element>>) -> Self {
        let Outline { chains, rules, sets } = outline;
        Self { chains, rules, sets, elements }
    }

    /// Returns the rules of a chain in order; none if it does not exist.
    pub(super) fn rules(&self, chain: &str) -> &[Rule] {
        self.rules.get(chain).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the elements of a set or map; none if it does not exist.
    pub(super) fn elements(&self, set: &str) -> &[Element] {
        self.elements.get(set).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the default lifetime of the elements of a set in seconds.
    pub(super) fn timeout(&self, set: &str) -> Option<u32> {
        let milliseconds = self.sets.get(set)?.timeout?;
        u32::try_from(milliseconds.div_ceil(1000)).ok()
    }
}
