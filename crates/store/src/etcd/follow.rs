//! Keeps the published state in sync with etcd: reads everything once, then follows a watch.
//!
//! Only changes that the watch has delivered are published, and the published revision advances only over whole
//! transactions. etcd's progress notifications are not used, because before 3.4.25 and 3.5.8 they could overtake
//! events. Instead every transaction that writes an object also writes `head`, so a read of that one key shows up to
//! which revision the watch must come.
//!
//! If etcd does not answer, the store reports after two seconds that etcd cannot be read. If etcd gives no watch, it
//! reports after two seconds that etcd cannot be followed, until a watch brings its first message. etcd opens the
//! watches that it refuses, too: it cancels them in their first message.
//!
//! When the watch breaks, it resumes after the last transaction received, at the next server. If etcd has compacted
//! that revision, or its revision is lower (a restored backup), or the endpoints lead to another cluster, everything
//! is read again. The history then starts empty, because it is unknown which objects were deleted when. Clients get
//! 410 Expired and list again.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;
use tracing::{debug, info, warn};

use super::{
    LONG, Shared,
    client::Failure,
    events::{Disorder, by_revision, object, publication},
    layout::{KNOWN_FORMAT, KeyMeaning, format_of, head_value, revision_after, signed, unsigned},
    messages::{
        Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, ResponseHeader,
        Target, TxnRequest, WatchCreateRequest, WatchResponse,
    },
};
use crate::{OpenError, tables::Tables};

/// Maximum number of objects in one page of the initial list.
const PAGE: i64 = 500;
/// Pauses between attempts to follow etcd: the first, and the limit of the exponential back-off.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How far the store has followed etcd's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    cluster: u64,
    /// The next etcd revision to receive.
    next: u64,
}

impl Position {
    /// Returns the position after a revision of the cluster that sent `header`.
    pub(super) fn after(header: &ResponseHeader, revision: u64) -> Self {
        Self { cluster: header.cluster_id, next: revision.saturating_add(1) }
    }
}

/// All objects in etcd, and the position from which to follow.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) tables: Tables,
    pub(super) position: Position,
}

/// Why a watch ended.
enum End {
    /// The connection or the server failed. Following resumes at the same position.
    Broken(String),
    /// Everything must be read again.
    Lost(String),
}

/// Writes `head` and reads everything at the revision of that write.
pub(super) async fn load(shared: &Shared) -> Result<Loaded, OpenError> {
    let header = write_head(shared).await?;
    load_now(shared, &header).await
}

/// Reads everything at the revision of `header`.
pub(super) async fn load_now(shared: &Shared, header: &ResponseHeader) -> Result<Loaded, OpenError> {
    let now = unsigned(header.revision);
    let tables = load_at(shared, now).await.map_err(|failure| shared.failed(failure.text()))?;
    shared.counters.load();
    Ok(Loaded { tables, position: Position::after(header, now) })
}

/// Reads everything at a revision that etcd still has.
pub(super) async fn load_at(shared: &Shared, revision: u64) -> Result<Tables, Failure> {
    let (mut start, end) = shared.layout.range();
    let mut tables = Tables::new(shared.limits, revision_after(revision));
    loop {
        let request =
            RangeRequest { key: start, range_end: end.clone(), limit: PAGE, revision: signed(revision) };
        let RangeResponse { kvs, more, .. } = shared.client.range(request).await?;
        for kv in &kvs {
            match shared.layout.place(&kv.key) {
                KeyMeaning::Head => {}
                KeyMeaning::Object(resource, key) => {
                    if let Some(object) = object(resource, &key, kv) {
                        tables.load(resource, object);
                    }
                }
                KeyMeaning::Unknown => {
                    let key = String::from_utf8_lossy(&kv.key);
                    warn!(%key, "a key below the prefix in etcd means nothing to this version");
                }
            }
        }
        let Some(kv) = kvs.last().filter(|_| more) else { return Ok(tables) };
        start = Bytes::from([&kv.key, &b"\0"[..]].concat());
    }
}

/// Writes `head`, unless its current value is another layout's version. Returns the header of etcd's answer.
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
            // Writing it twice is harmless.
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

/// Follows etcd. Never returns.
pub(super) async fn follow(shared: Arc<Shared>, mut position: Position) {
    let mut pause = FIRST_PAUSE;
    // Since when no watch has brought a message.
    let mut broken = None;
    loop {
        let before = position;
        let mut server = shared.client.current();
        let end = match find_or_report(&shared, position).await {
            Ok(()) => {
                server = shared.client.current();
                match open(&shared, server, position).await {
                    Ok(stream) => watch(&shared, stream, &mut position, &mut broken).await,
                    Err(end) => end,
                }
            }
            Err(end) => end,
        };
        match end {
            End::Broken(reason) => {
                warn!(%reason, "the watch of etcd broke off; going on");
                if broken.get_or_insert_with(Instant::now).elapsed() >= LONG {
                    shared.cannot_follow(&reason);
                }
                // Calls that failed at this server have left it. The server that they use now is not to blame.
                shared.client.leave(server);
            }
            End::Lost(reason) => {
                warn!(%reason, "reading everything in etcd anew; clients will list again");
                match load(&shared).await {
                    Ok(Loaded { tables, position: new }) => {
                        shared.published.replace(tables);
                        position = new;
                        info!("everything in etcd was read again");
                    }
                    Err(reason) => shared.cannot_follow(&reason.to_string()),
                }
            }
        }
        pause = if position == before { pause.saturating_mul(2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        sleep(pause).await;
    }
}

/// Does the same as [`find`]. If that takes long, reports meanwhile that etcd cannot be read.
async fn find_or_report(shared: &Shared, position: Position) -> Result<(), End> {
    let mut found = pin!(find(shared, position));
    if let Ok(found) = timeout(LONG, &mut found).await {
        return found;
    }
    shared.cannot_read("no endpoint has answered for two seconds");
    found.await
}

/// Checks that the position belongs to this cluster and is not ahead of its history. The read is linearizable, so a
/// server that only lags behind does not cause an error.
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

/// Opens a watch at a server.
async fn open(shared: &Shared, server: usize, position: Position) -> Result<Streaming<WatchResponse>, End> {
    let (key, range_end) = shared.layout.range();
    let create = WatchCreateRequest { key, range_end, start_revision: signed(position.next) };
    let opened = shared.client.watch(server, create).await;
    debug!(next = position.next, "following etcd");
    opened.map_err(|failure| End::Broken(failure.text()))
}

/// Publishes the changes from one watch until it ends.
async fn watch(
    shared: &Shared,
    mut stream: Streaming<WatchResponse>,
    position: &mut Position,
    broken: &mut Option<Instant>,
) -> End {
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
        // The first message says only that the watch was created.
        *broken = None;
        shared.follows();
    }
}

/// Publishes one message of the watch. etcd sends all events of a transaction in one message.
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
