//! Writes tables as messages, and reads them from messages in memory, for fuzz targets.

use std::collections::HashMap;

use portolan_engine::table::Table;
use portolan_model::Family;
use portolan_model::observed::Observed;
use portolan_wire::nftables::{Element as WireElement, NftablesEvent, Transaction};
use portolan_wire::{Batch, Frames};

use super::chain::FamilyTable;
use super::element::Element;
use super::encode;
use super::layout::{CAPTURE, Kind, Listeners, TRANSLATE, Target};
use super::load::Pieces;
use super::memory::Memory;
use super::observe::{observed, observed_kube_proxy};
use super::planner::Planner;
use super::readback::{Outline, View, saved_elements};
use super::resync::Difference;

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
    let mut planner = planner(table, None);
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

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// Nothing to mend.
    Nothing,
    /// Something, which it has mended.
    Something,
}

/// Compares a kernel that lists these messages with a table, and writes the difference. Then nothing is left to write: whatever
/// others have done to the table, one comparison mends it.
///
/// # Errors
/// Something is left to write, or the kernel would refuse the transaction. The text is for people.
pub fn mend(table: &Table, capture: Option<Listeners>, bytes: &[u8]) -> Result<Mended, String> {
    let place = planner(table, capture).layout().place();
    let mut memory = Memory::listed(place, bytes);
    let exists = memory.table.is_some();
    let (first, batch) = compared(table, capture, &memory);
    if first.is_empty() && exists {
        return Ok(Mended::Nothing);
    }
    memory.apply(&batch.ok_or("the transaction is too long")?)?;
    let (second, _) = compared(table, capture, &memory);
    if second.is_empty() { Ok(Mended::Something) } else { Err(format!("{second:?}\nafter\n{first:?}")) }
}

/// Compares the kernel with a table, and encodes what is to be written.
fn compared(table: &Table, capture: Option<Listeners>, memory: &Memory) -> (Difference, Option<Batch>) {
    let mut planner = planner(table, capture);
    let mut view = memory.view(planner.layout().place(), View::default());
    let exists = view.table.is_some();
    let difference = Difference::between(&mut planner, table, &mut view);
    let mut transaction = Transaction::begin(1, None);
    difference.encode(&mut transaction, &planner, exists);
    let place = planner.layout().place();
    // In the kernel these are two transactions.
    for elements in [&difference.elements, &difference.later] {
        encode::elements(&mut transaction, place, elements, planner.settings.counters);
    }
    if !exists {
        load(&mut transaction, &planner, table);
    }
    (difference, transaction.finish().ok())
}

/// Writes all elements and the base chains of a new table.
fn load(transaction: &mut Transaction, planner: &Planner, table: &Table) {
    let mut pieces = Pieces::default();
    while let Some(elements) = pieces.next(planner, table) {
        encode::elements(transaction, planner.layout().place(), &elements, planner.settings.counters);
    }
    encode::base_chains(transaction, planner.layout());
}

fn planner(table: &Table, capture: Option<Listeners>) -> Planner {
    let mut planner = Planner::new(table.settings().clone());
    planner.target = capture.map_or(Target::Endpoints, Target::Relay);
    planner
}

/// Returns the messages that write a table into a kernel that has nothing of this mode. The kernel lists objects with
/// messages of the same types, which also have handles and numbers of uses. With `capture`, packets go to these listeners.
pub fn written(table: &Table, capture: Option<Listeners>) -> Vec<u8> {
    let (_, batch) = compared(table, capture, &Memory::default());
    batch.as_ref().and_then(|batch| batch.bytes().ok()).unwrap_or_default().to_vec()
}

/// Returns what the tables mean that these messages list: ours, the one that captures packets for the relay, and
/// kube-proxy's.
pub fn observe(family: Family, bytes: &[u8]) -> [Observed; 3] {
    let of_kind = |kind: &Kind| {
        let place = kind.place(family);
        observed(Memory::listed(place, bytes).view(place, View::with_comments()), kind, place)
    };
    let place = FamilyTable { family, table: "kube-proxy" };
    let (mut outline, mut elements) = (Outline::default(), HashMap::<String, Vec<WireElement>>::new());
    for frame in Frames::new(bytes).map_while(Result::ok) {
        match NftablesEvent::decode(&frame) {
            Ok(NftablesEvent::NewElements(list)) if list.table == place.table => {
                let listed = list.elements().flatten().map(|element| element.to_owned());
                elements.entry(list.set.to_owned()).or_default().extend(listed);
            }
            Ok(event) => outline.take(event, place.table),
            Err(_) => {}
        }
    }
    [of_kind(TRANSLATE), of_kind(CAPTURE), observed_kube_proxy(family, outline, elements)]
}
