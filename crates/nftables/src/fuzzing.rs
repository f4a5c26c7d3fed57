//! Reads tables from messages in memory, for fuzz targets.

use std::collections::{BTreeMap, HashMap};

use portolan_model::Family;
use portolan_model::observed::Observed;
use portolan_wire::Frames;
use portolan_wire::nftables::{ElementRef, NftTable, NftablesEvent};

use super::chain::FamilyTable;
use super::element::Set;
use super::layout::{CAPTURE, Kind, TRANSLATE};
use super::observe::{observed, observed_kube_proxy};
use super::readback::{Outline, View};

/// What messages list.
#[derive(Default)]
struct Listing<'a> {
    table: Option<NftTable>,
    outline: Outline,
    elements: BTreeMap<&'a str, Vec<ElementRef<'a>>>,
}

impl<'a> Listing<'a> {
    fn of(place: FamilyTable, bytes: &'a [u8]) -> Self {
        let mut listing = Self::default();
        for frame in Frames::new(bytes).map_while(Result::ok) {
            match NftablesEvent::decode(&frame) {
                Ok(NftablesEvent::NewTable(table)) => listing.table = Some(table),
                Ok(NftablesEvent::NewElements(list)) if list.table == place.table => {
                    listing.elements.entry(list.set).or_default().extend(list.elements().flatten());
                }
                Ok(event) => listing.outline.take(event, place.table),
                Err(_) => {}
            }
        }
        listing
    }

    fn view(self, place: FamilyTable) -> View {
        let Outline { chains, rules, sets } = self.outline;
        let mut view = View { table: self.table, chains, rules, sets, ..View::with_comments() };
        for set in Set::ALL {
            let elements = self.elements.get(set.name()).map(Vec::as_slice).unwrap_or_default();
            view.add_elements(place, set, elements);
        }
        view
    }
}

/// Returns what the tables mean that these messages list: ours, the one that captures packets for the relay, and
/// kube-proxy's.
pub fn observe(family: Family, bytes: &[u8]) -> [Observed; 3] {
    let of_kind = |kind: &Kind| {
        let place = kind.place(family);
        observed(Listing::of(place, bytes).view(place), kind, place)
    };
    let place = FamilyTable { family, table: "kube-proxy" };
    let Listing { outline, elements, .. } = Listing::of(place, bytes);
    let owned = |(set, elements): (&str, Vec<ElementRef<'_>>)| {
        (set.to_owned(), elements.iter().map(ElementRef::to_owned).collect())
    };
    let elements: HashMap<_, _> = elements.into_iter().map(owned).collect();
    [of_kind(TRANSLATE), of_kind(CAPTURE), observed_kube_proxy(family, outline, elements)]
}
