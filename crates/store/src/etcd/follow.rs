//! Keeps what is published in step with etcd: reads everything once, then follows.
//!
//! Only what the watch has delivered is published, and a revision is claimed only when the whole transaction is. etcd's
//! notifications of progress are not relied upon: until 3.4.25 and 3.5.8 they could overtake events. Every transaction of
//! ours writes `head`, so that reading that one key tells how far the watch must come.
//!
//! When the watch breaks, it goes on after the last transaction seen, at the next server. When etcd no longer has that
//! (compaction), or has less than was seen (a restored backup), everything is read anew, and the history begins anew,
//! too: which deletions happened when can no longer be known, so clients are told to list again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::sleep;
use tracing::{debug, error, info, warn};

use super::{
    Shared,
    client::Failure,
    events::{Disorder, by_revision, object, publication},
    layout::{KNOWN_FORMAT, Place, format_of, head_value, revision_after, signed, unsigned},
    messages::{
        Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, ResponseHeader,
        Target, TxnRequest, WatchCreateRequest, WatchResponse,
    },
};
use crate::{OpenError, tables::Tables};

/// Objects in one page of the first list.
const PAGE: i64 = 500;
/// Pauses between attempts to follow etcd.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Where the store is in etcd's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    cluster: u64,
    /// The next revision to come.
    next: u64,
}

impl Position {
    /// After a revision of the cluster that answered.
    pub(super) fn after(header: &ResponseHeader, revision: u64) -> Self {
        Self { cluster: header.cluster_id, next: revision.saturating_add(1) }
    }
}

/// Everything in etcd at one revision.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) tables: Tables,
    pub(super) position: Position,
}

/// Why following came to an end.
enum End {
    /// The connection, or the server: go on where it was.
    Broken(String),
    /// Everything has to be read anew.
    Lost(String),
}

/// Reads everything, as it is when `head` is written for that purpose.
pub(super) async fn load(shared: &Shared) -> Result<Loaded, OpenError> {
    let header = write_head(shared).await?;
    load_now(shared, &header).await
}

/// Reads everything as it is at `header`.
pub(super) async fn load_now(shared: &Shared, header: &ResponseHeader) -> Result<Loaded, OpenError> {
    let now = unsigned(header.revision);
    let tables = load_at(shared, now).await.map_err(|failure| shared.failed(failure.text()))?;
    shared.counters.load();
    Ok(Loaded { tables, position: Position::after(header, now) })
}

/// Everything at a revision that etcd still has.
pub(super) async fn load_at(shared: &Shared, revision: u64) -> Result<Tables, Failure> {
    let (mut start, end) = shared.layout.range();
    let mut tables = Tables::new(shared.limits, revision_after(revision));
    loop {
        let request =
            RangeRequest { key: start, range_end: end.clone(), limit: PAGE, revision: signed(revision) };
        let RangeResponse { kvs, more, .. } = shared.client.range(request).await?;
        for kv in &kvs {
            match shared.layout.place(&kv.key) {
                Place::Head => {}
                Place::Object(resource, key) => {
                    if let Some(object) = object(resource, &key, kv) {
                        tables.load(resource, object);
                    }
                }
                Place::Unknown => {
                    let key = String::from_utf8_lossy(&kv.key);
                    warn!(%key, "a key below the prefix in etcd means nothing to this version");
                }
            }
        }
        let Some(kv) = kvs.last().filter(|_| more) else { return Ok(tables) };
        start = Bytes::from([&kv.key, &b"\0"[..]].concat());
    }
}

/// Writes `head`, unless it says that the layout is another one.
pub(super) async fn write_head(shared: &Shared) -> Result<ResponseHeader, OpenError> {
    let key = shared.layout.head();
    let compare = |target: Target| Compare {
        target: target.into(),
        key: key.clone(),
        mod_revision: (target == Target::Mod).then_some(0),
        value: (target == Target::Value).then(head_value),
    };
    let put = Request::Put(PutRequest { key: key.clone(), value: head_value() });
    let read = Request::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
    loop {
        for target in [Target::Value, Target::Mod] {
            let request = TxnRequest {
                compare: vec![compare(target)],
                success: vec![RequestOp { request: Some(put.clone()) }],
                failure: vec![RequestOp { request: Some(read.clone()) }],
            };
            // It does no harm to write it twice.
            let answer = shared.client.transact_again(request).await;
            let answer = answer.map_err(|failure| shared.failed(failure.text()))?;
            if answer.succeeded {
                return answer.header.ok_or_else(|| shared.failed("an answer without header".into()));
            }
            let range = answer.responses.into_iter().find_map(|response| response.range);
            if let Some(head) = range.and_then(|range| range.kvs.into_iter().next()) {
                check_format(shared, &head)?;
            }
        }
    }
}

fn check_format(shared: &Shared, head: &KeyValue) -> Result<(), OpenError> {
    let place = format!("etcd key {}", String::from_utf8_lossy(&head.key));
    match format_of(&head.value) {
        Some(KNOWN_FORMAT) => Ok(()),
        Some(found) => Err(OpenError::Newer { place, found, known: KNOWN_FORMAT }),
        None => {
            Err(shared.failed(format!("{place} holds no version: the prefix is in use by something else")))
        }
    }
}

/// Follows etcd for ever.
pub(super) async fn follow(shared: Arc<Shared>, mut position: Position) {
    let mut pause = FIRST_PAUSE;
    loop {
        let before = position;
        let end = match find(&shared, position).await {
            Ok(()) => watch(&shared, &mut position).await,
            Err(end) => end,
        };
        match end {
            End::Broken(reason) => {
                warn!(%reason, "the watch of etcd broke off; going on");
                shared.client.leave_current();
            }
            End::Lost(reason) => {
                warn!(%reason, "reading everything in etcd anew; clients will list again");
                match load(&shared).await {
                    Ok(Loaded { tables, position: new }) => {
                        shared.published.replace(tables);
                        position = new;
                        info!("everything in etcd was read anew");
                    }
                    Err(reason) => error!(%reason, "etcd cannot be read; trying again"),
                }
            }
        }
        pause = if position == before { pause.saturating_mul(2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        sleep(pause).await;
    }
}

/// Whether etcd's history still has our position. A server that only lags does not confuse this: the read is
/// linearizable.
async fn find(shared: &Shared, position: Position) -> Result<(), End> {
    let request = RangeRequest { key: shared.layout.head(), ..RangeRequest::default() };
    let answer = shared.client.range(request).await.map_err(|failure| End::Broken(failure.text()))?;
    let Some(header) = answer.header else { return Err(End::Broken("an answer without header".into())) };
    if header.cluster_id != position.cluster {
        return Err(End::Lost("the endpoints lead to another etcd cluster than before".into()));
    }
    if unsigned(header.revision).saturating_add(1) < position.next {
        return Err(End::Lost("etcd's revision went back: it was restored from a backup".into()));
    }
    Ok(())
}

/// Publishes what comes from one watch until it ends.
async fn watch(shared: &Shared, position: &mut Position) -> End {
    let (key, range_end) = shared.layout.range();
    let create = WatchCreateRequest { key, range_end, start_revision: signed(position.next) };
    let mut stream = match shared.client.watch(create).await {
        Ok(stream) => stream,
        Err(failure) => return End::Broken(failure.text()),
    };
    debug!(next = position.next, "following etcd");
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = shared.behind.notified() => return End::Broken("it does not show what was written".into()),
        };
        let answer = match message {
            Ok(Some(answer)) => answer,
            Ok(None) => return End::Broken("the server ended it".into()),
            Err(status) => return End::Broken(status.to_string()),
        };
        if let Err(end) = take(shared, position, &answer) {
            return end;
        }
    }
}

/// Publishes one message of the watch. All events of a transaction are in one message.
fn take(shared: &Shared, position: &mut Position, answer: &WatchResponse) -> Result<(), End> {
    if answer.compact_revision > 0 {
        return Err(End::Lost(format!("etcd has compacted what was before {}", answer.compact_revision)));
    }
    if answer.canceled {
        return Err(End::Broken(answer.cancel_reason.clone()));
    }
    for (revision, events) in by_revision(&answer.events) {
        if revision < position.next {
            continue;
        }
        let published =
            shared.published.publish(|tables| publication(&shared.layout, revision, events, tables));
        if let Err(Disorder) = published {
            return Err(End::Lost(format!("revision {revision} in etcd was not written by this program")));
        }
        position.next = revision.saturating_add(1);
    }
    Ok(())
}
