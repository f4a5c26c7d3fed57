//! Writes tables as messages, and reads them from messages in memory, for fuzz targets.

use std::collections::{BTreeMap, HashMap};

use portolan_engine::table::Table;
use portolan_model::Family;
use portolan_model::observed::Observed;
use portolan_wire::Frames;
use portolan_wire::nftables::{ElementRef, NftTable, NftablesEvent, Transaction};

use super::chain::FamilyTable;
use super::element::{Element, Set};
use super::encode;
use super::layout::{CAPTURE, Kind, Listeners, TRANSLATE, Target};
use super::load::Pieces;
use super::observe::{observed, observed_kube_proxy};
use super::planner::Planner;
use super::readback::{Outline, View, saved_elements};
use super::resync::Difference;

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

    /// Adds what is listed to an empty view.
    fn view(self, place: FamilyTable, empty: View) -> View {
        let Outline { chains, rules, sets } = self.outline;
        let mut view = View { table: self.table, chains, rules, sets, ..empty };
        for set in Set::ALL {
            let elements = self.elements.get(set.name()).map(Vec::as_slice).unwrap_or_default();
            view.add_elements(place, set, elements);
        }
        view
    }
}

/// What a kernel lists of tables of other programs, of nftables and of iptables as its front end. A test of this crate makes the file.
pub const OTHER: &[u8] = include_bytes!("fuzzing/other.netlink");

/// Returns what a kernel lists of a table of kube-proxy. A test of this crate makes the files from such a table.
pub const fn kube_proxy(family: Family) -> &'static [u8] {
    match family {
        Family::Ipv4 => include_bytes!("fuzzing/kube-proxy.ipv4.netlink"),
        Family::Ipv6 => include_bytes!("fuzzing/kube-proxy.ipv6.netlink"),
    }
}

/// Returns a file with the saved elements of a table, without the head that says for what it counts, and their number.
pub fn saved_elements(table: &Table) -> (Vec<u8>, usize) {
    let mut planner = Planner::new(table.settings().clone());
    Difference::between(&mut planner, table, &mut View::default());
    let forwardings = table.iter().flat_map(|(name, forwarding)| planner.elements_of(name, &forwarding));
    let elements: Vec<Element> = forwardings.filter(|element| saved_elements::has(element.set)).collect();
    let bytes = saved_elements::write(planner.settings.counters, &elements).unwrap_or_default();
    (bytes, elements.len())
}

/// Returns the number of elements in such a file; `None` if it is something else.
pub fn read_saved_elements(family: Family, bytes: &[u8]) -> Option<usize> {
    saved_elements::read(TRANSLATE.place(family), bytes).ok()
}

/// Compares a kernel that lists these messages with a table, and encodes what is to be written. Returns true if there is
/// nothing to write.
pub fn compare(table: &Table, capture: Option<Listeners>, bytes: &[u8]) -> bool {
    let mut planner = planner(table, capture);
    let place = planner.layout().place();
    let mut view = Listing::of(place, bytes).view(place, View::default());
    let exists = view.table.is_some();
    let difference = Difference::between(&mut planner, table, &mut view);
    let mut transaction = Transaction::begin(1, None);
    difference.encode(&mut transaction, &planner, exists);
    encode::elements(&mut transaction, place, &difference.elements, planner.settings.counters);
    difference.is_empty()
}

fn planner(table: &Table, capture: Option<Listeners>) -> Planner {
    let mut planner = Planner::new(table.settings().clone());
    planner.target = capture.map_or(Target::Endpoints, Target::Relay);
    planner
}

/// Returns the messages that write a table into a kernel that has nothing of this mode. The kernel lists objects with
/// messages of the same types, which also have handles and numbers of uses. With `capture`, packets go to these listeners.
pub fn written(table: &Table, capture: Option<Listeners>) -> Vec<u8> {
    let mut planner = planner(table, capture);
    let difference = Difference::between(&mut planner, table, &mut View::default());
    let mut transaction = Transaction::begin(1, None);
    difference.encode(&mut transaction, &planner, false);
    let mut pieces = Pieces::default();
    while let Some(elements) = pieces.next(&planner, table) {
        encode::elements(&mut transaction, planner.layout().place(), &elements, planner.settings.counters);
    }
    encode::base_chains(&mut transaction, planner.layout());
    let batch = transaction.finish();
    batch.as_ref().ok().and_then(|batch| batch.bytes().ok()).unwrap_or_default().to_vec()
}

/// Returns what the tables mean that these messages list: ours, the one that captures packets for the relay, and
/// kube-proxy's.
pub fn observe(family: Family, bytes: &[u8]) -> [Observed; 3] {
    let of_kind = |kind: &Kind| {
        let place = kind.place(family);
        observed(Listing::of(place, bytes).view(place, View::with_comments()), kind, place)
    };
    let place = FamilyTable { family, table: "kube-proxy" };
    let Listing { outline, elements, .. } = Listing::of(place, bytes);
    let owned = |(set, elements): (&str, Vec<ElementRef<'_>>)| {
        (set.to_owned(), elements.iter().map(ElementRef::to_owned).collect())
    };
    let elements: HashMap<_, _> = elements.into_iter().map(owned).collect();
    [of_kind(TRANSLATE), of_kind(CAPTURE), observed_kube_proxy(family, outline, elements)]
}
