//! How a server begins: with what was in etcd a while ago, and what has happened since. So watches that another server,
//! or this one in an earlier life, has begun go on here, where a server that knew the present alone would have their
//! clients list again.

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

/// Revisions of etcd that are looked back at most, so that a start stays quick. etcd sends a thousand in one message.
const LOOK_BACK: u64 = 2000;

/// Reads everything, and of the history what etcd still has and what is not too long ago.
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

/// The state of a while ago, with every change up to `header`.
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

/// The revision to begin with, which etcd has not compacted, a watch from after it, and its first answer. There is one:
/// `head` has been written at `now`.
async fn reach(shared: &Shared, now: u64) -> Result<(u64, Streaming<WatchResponse>, WatchResponse), String> {
    let mut past = now.saturating_sub(LOOK_BACK).max(1);
    while past < now {
        let (key, range_end) = shared.layout.range();
        let create = WatchCreateRequest { key, range_end, start_revision: signed(past.saturating_add(1)) };
        let mut stream = shared.client.watch(create).await.map_err(|failure| failure.text())?;
        let answer = next(shared, &mut stream).await?;
        let compacted = unsigned(answer.compact_revision);
        if compacted <= past {
            return Ok((past, stream, answer));
        }
        past = compacted;
    }
    Err(format!("etcd has compacted what was before {past}"))
}

/// The next answer that says something.
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

/// Puts what an answer says into the tables; the last revision that is in them then.
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
