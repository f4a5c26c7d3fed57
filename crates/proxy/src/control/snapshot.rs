//! The agent's part of a snapshot: its state, its objects and its history, as a compressed document.
//!
//! The agent copies its Catalog, and a thread for blocking work makes the document from the copy, one object at a time.
//! So the agent takes as much memory as its Catalog for a moment, and not that of all manifests. One such document is made
//! at a time.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_node::health::Now;
use portolan_node::time::rfc3339;
use portolan_recorder::History as Recording;
use portolan_snapshot::objects::Objects;
use portolan_snapshot::{ApiServer, FORMAT, History, Recorded, Snapshot, VERSION, pack};
use portolan_web::{self as web, Answer};
use serde::{Serialize, Serializer};

use super::state::Lane;
use super::{Control, RequestPermit, SHORT_ENGINE_WAIT, routes, state};
use crate::agent::Agent;
use crate::agent::facts::{Facts, Held};
use crate::packets;

/// The media type of compressed documents.
const GZIP: &str = "application/gzip";

/// Answers with the document.
pub(super) async fn answer(control: Arc<Control>, _: Request<Bytes>, place: RequestPermit) -> Answer {
    let Ok(alone) = Arc::clone(&control.one_snapshot).try_acquire_owned() else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "another snapshot is being made; ask again");
    };
    let Some((facts, held)) = control.ask(|agent: &Agent| (agent.facts(), agent.held())).await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    };
    let lanes = match &facts.engine {
        Some(engine) => Control::ask_engine(engine, SHORT_ENGINE_WAIT, Lane::all).await,
        None => Some(Vec::new()),
    };
    let answering = crate::blocking::run(move || {
        let _places = (place, alone);
        let packed = document(&control, &facts, lanes, held);
        portolan_sock::memory::trim();
        packed
    });
    match answering.await.flatten() {
        Ok(packed) => web::answer(StatusCode::OK, GZIP, packed),
        Err(error) => routes::plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}")),
    }
}

fn document(
    control: &Control,
    facts: &Facts,
    lanes: Option<Vec<Lane>>,
    held: Held,
) -> anyhow::Result<Vec<u8>> {
    let Held { catalog, node, families, history } = held;
    let snapshot = Snapshot {
        format: FORMAT.to_owned(),
        version: VERSION,
        time: rfc3339(Now::read().wall),
        state: state::document(control, facts, lanes),
        node: portolan_snapshot::Node {
            name: facts.node.clone(),
            addresses: packets::interface_addresses()?,
            families: families.iter().map(|family| family.name().to_owned()).collect(),
        },
        api_server: ApiServer::from(catalog.api_server()),
        set_aside: catalog.aside().clone(),
        objects: Objects { catalog, node },
        history: History { limit: history.limit(), total: history.total(), records: Records(history) },
        kernel: portolan_snapshot::Kernel::default(),
        programmed: Vec::new(),
        rules: None,
        conntrack: std::collections::BTreeMap::new(),
        doctor: serde_json::Value::Null,
        unread: Vec::new(),
    };
    let mut packed = Vec::new();
    pack(&snapshot, &mut packed)?;
    Ok(packed)
}

/// The records of a history. They are decoded one by one when they are serialised.
struct Records(Recording);

impl Serialize for Records {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.records().map(Recorded::from))
    }
}
