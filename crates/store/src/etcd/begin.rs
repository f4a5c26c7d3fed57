//! The start of a server: reads the state at an earlier revision of etcd and replays the changes since. The replayed
//! changes are the server's initial history. So clients can resume watches that they began at another server, or at
//! this one before a restart. Without that history they would have to list again.

use tokio::time::timeout_at;
use tonic::Streaming;
use tracing::info;

use super::{
    Shared,
    events::{Disorder, by_revision, publication},
    follow::{Loaded, Position, load_at, load_now, write_head},
    layout::{signed, unsigned},
    messages::{ResponseHeader, WatchCreateRequest, WatchResponse},
};
use crate::{OpenError, tables::Tables};

/// Maximum number of etcd revisions to look back, so that the start stays quick. etcd sends a thousand in one
/// message.
const LOOK_BACK: u64 = 2000;

/// Reads the state and the recent history that etcd still has. If the history cannot be read, reads the state only.
pub(super) async fn begin(shared: &Shared) -> Result<Loaded, OpenError> {
    let header = write_head(shared).await?;
    match replay(shared, &header).await {
        Ok(loaded) => {
            shared.counters.load();
            Ok(loaded)
        }
        Err(reason) => {
            info!(%reason, "what happened before in etcd cannot be read; watches from before will list again");
            load_now(shared, &header).await
        }
    }
}

/// Returns the state at an earlier revision with every change up to `header` applied.
async fn replay(shared: &Shared, header: &ResponseHeader) -> Result<Loaded, String> {
    let now = unsigned(header.revision);
    let (past, mut stream, mut answer) = reach(shared, now).await?;
    let mut tables = load_at(shared, past).await.map_err(|failure| failure.text())?;
    let mut last = past;
    loop {
        last = apply(shared, &mut tables, last, &answer)?;
        if last >= now {
            return Ok(Loaded { tables, position: Position::after(header, last) });
        }
        answer = next(shared, &mut stream).await?;
    }
}

/// Returns the start revision, which etcd has not compacted, a watch from after it, and the watch's first answer.
/// There always is an answer, because `head` was written at `now`.
async fn reach(shared: &Shared, now: u64) -> Result<(u64, Streaming<WatchResponse>, WatchResponse), String> {
    let mut past = now.saturating_sub(LOOK_BACK).max(1);
    while past < now {
        let (key, range_end) = shared.layout.range();
        let create = WatchCreateRequest { key, range_end, start_revision: signed(past.saturating_add(1)) };
        let stream = shared.client.watch(shared.client.current(), create).await;
        let mut stream = stream.map_err(|failure| failure.text())?;
        let answer = next(shared, &mut stream).await?;
        let compacted = unsigned(answer.compact_revision);
        if compacted <= past {
            return Ok((past, stream, answer));
        }
        past = compacted;
    }
    Err(format!("etcd has compacted what was before {past}"))
}

/// Returns the next answer that contains events or a compaction.
async fn next(shared: &Shared, stream: &mut Streaming<WatchResponse>) -> Result<WatchResponse, String> {
    let deadline = shared.client.deadline();
    loop {
        let answer = timeout_at(deadline, stream.message()).await;
        let answer = answer.map_err(|_| "no answer in time")?.map_err(|status| status.to_string())?;
        let answer = answer.ok_or("the server ended the watch")?;
        if answer.canceled && answer.compact_revision == 0 {
            return Err(answer.cancel_reason);
        }
        if !answer.events.is_empty() || answer.compact_revision > 0 {
            return Ok(answer);
        }
    }
}

/// Applies the events of an answer to the tables. Returns the last etcd revision that is applied.
fn apply(shared: &Shared, tables: &mut Tables, mut last: u64, answer: &WatchResponse) -> Result<u64, String> {
    if answer.compact_revision > 0 {
        return Err(format!("etcd has compacted what was before {}", answer.compact_revision));
    }
    for (revision, events) in by_revision(&answer.events) {
        let publication = publication(&shared.layout, revision, events, tables);
        let publication =
            publication.map_err(|Disorder| format!("revision {revision} was not written by this program"))?;
        for write in publication.writes {
            tables.apply(write.resource, write.change, &mut Vec::new());
        }
        tables.complete(publication.through);
        last = revision;
    }
    Ok(last)
}
