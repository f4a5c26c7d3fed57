//! Places the Service ports of the table with the ids, indexes and slots that the kernel has for them.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_engine::table::Table;
use portolan_model::{Family, Forwarding, ServicePortName};

use super::super::changeset::comment_for;
use super::super::content;
use super::super::element::{Data, Element, Key, Set, read_number};
use super::super::placement::Before;
use super::super::planner::{Plan, Planner};
use super::super::readback::{Actual, View};
use super::super::value::{LOCAL_OFFSET, Value};
use super::{Pause, piece_after};

/// Places every Service port of the table that is not placed. First come those whose own frontends the kernel has, then those
/// with a frontend that was another's, and the others at last.
pub(super) fn place_missing<E>(
    planner: &mut Planner,
    table: &Table,
    view: &mut View,
    rebuild: bool,
    plan: &mut Plan,
    pause: Pause<'_, E>,
) -> Result<(), E> {
    if !rebuild {
        // Also ids of Service ports that are not in the table any more.
        planner.ids.go_on_above(view.highest_id());
    }
    // Only their names: all Service ports are new at a first start.
    let (mut moved, mut fresh) = (Vec::new(), Vec::new());
    if planner.placed.len() != table.len() || !view.arrived.is_empty() {
        planner.placed.reserve(table.len().saturating_sub(planner.placed.len()));
        let mut place_found =
            |planner: &mut Planner, view: &View, name: &Arc<ServicePortName>, forwarding: &Forwarding| {
                if planner.placed.contains_key(name) {
                    return;
                }
                let own = if rebuild { None } else { own_id(view, name, forwarding) };
                if own.is_some_and(|id| place_at(planner, view, (name, forwarding), id, plan)) {
                    return;
                }
                let is_moved = !rebuild && found_id(view, forwarding).is_some();
                let later = if is_moved { &mut moved } else { &mut fresh };
                later.push(name.clone());
            };
        let mut last = None;
        while let Some(piece) = piece_after(table, last.as_ref()) {
            for (name, forwarding) in piece.iter().filter(|(name, _)| !view.arrived.contains_key(name)) {
                place_found(planner, view, name, forwarding);
            }
            last = piece.last().map(|(name, _)| name.clone());
            pause(planner, view)?;
        }
        for (name, forwarding) in &view.arrived {
            if let Some(forwarding) = forwarding {
                place_found(planner, view, name, forwarding);
            }
        }
    }
    view.is_placed = true;
    // One may have been placed, changed or deleted since it was found missing.
    let now = |planner: &Planner, view: &View, name: &Arc<ServicePortName>| {
        let now = view.arrived.get(name).cloned().unwrap_or_else(|| table.get(name));
        now.filter(|_| !planner.placed.contains_key(name))
    };
    moved.sort_unstable();
    for name in moved {
        let Some(forwarding) = now(planner, view, &name) else { continue };
        let id = found_id(view, &forwarding);
        if !id.is_some_and(|id| place_at(planner, view, (&name, &forwarding), id, plan)) {
            fresh.push(name);
        }
    }
    // One that was changed meanwhile is there twice.
    fresh.sort_unstable();
    fresh.dedup();
    for name in fresh {
        if let Some(forwarding) = now(planner, view, &name) {
            planner.place(name, &forwarding, &Before::default(), 0, plan);
        }
    }
    Ok(())
}

/// Places a Service port with an id of the kernel and its positions there. Returns false if the id is in use.
fn place_at(
    planner: &mut Planner,
    view: &View,
    (name, forwarding): (&Arc<ServicePortName>, &Forwarding),
    id: u32,
    plan: &mut Plan,
) -> bool {
    let is_adopted = planner.ids.adopt(id);
    if is_adopted {
        let before = before(view, planner.settings.family, id);
        planner.place(name.clone(), forwarding, &before, id, plan);
    }
    is_adopted
}

/// Returns the id that the kernel has for a Service port: that of its first frontend whose comment is its name. Frontends
/// with another comment were those of another Service port.
pub(in super::super) fn own_id(view: &View, name: &ServicePortName, forwarding: &Forwarding) -> Option<u32> {
    let text = name.to_string();
    let mut frontends = leading(view, forwarding);
    let (_, own) = frontends.find(|(element, there)| {
        there.more == Actual::of(element, comment_for(element.set, &text), false).more
    })?;
    id_in(&own)
}

/// Returns the id to which the first frontend of a Service port leads in the kernel, also if that frontend was another's.
fn found_id(view: &View, forwarding: &Forwarding) -> Option<u32> {
    leading(view, forwarding).find_map(|(_, there)| id_in(&there))
}

/// Returns the elements with the frontends of a Service port that lead to an id, and what the kernel has there.
fn leading(view: &View, forwarding: &Forwarding) -> impl Iterator<Item = (Element, Actual)> {
    forwarding.frontends.iter().filter_map(|frontend| {
        let (key, node_port) = content::frontend_key(*frontend, forwarding.protocol);
        let set = if node_port { Set::NodePorts } else { Set::Services };
        let element = Element { set, key, key_end: None, data: Data::EMPTY };
        Some((element, view.actual(set, &key)?))
    })
}

fn id_in(frontend: &Actual) -> Option<u32> {
    Some(Value(read_number(frontend.data.as_slice())?).id())
}

/// Returns the positions of the endpoints that the kernel has with an id.
pub(in super::super) fn before(view: &View, family: Family, id: u32) -> Before {
    let mut before = Before {
        cluster: view.endpoints(family, id, 0),
        local: view.endpoints(family, id, LOCAL_OFFSET),
        slots: Vec::new(),
        next_slot: 0,
    };
    for (first, set) in [(0, Set::AffinityEndpoints), (LOCAL_OFFSET, Set::AffinityLocalEndpoints)] {
        let slots: Vec<(SocketAddr, u16)> = view
            .choices(id, first)
            .into_iter()
            .map_while(|slot| {
                let key = Key::EMPTY.number(slot);
                Some((view.endpoint(family, set, key)?, Value(slot).low()))
            })
            .collect();
        let order = if first == 0 { &mut before.cluster } else { &mut before.local };
        order.extend(slots.iter().map(|&(socket, _)| socket));
        before.slots.extend(slots);
    }
    let highest = before.slots.iter().map(|&(_, slot)| slot).max();
    before.next_slot = highest.map_or(0, |slot| slot.saturating_add(1));
    before
}
