//! Kills a process with `kill -9` while it writes.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

use portolan_store::{DurableStore, History, OpenError, Store};
use tokio::task::JoinSet;

use crate::{
    suite::changes,
    support::{NODE, SERVICE, SLICE, commit, content, put},
};

const FOLDER: &str = "PORTOLAN_STORE_TEST_FOLDER";
const ROUND: &str = "PORTOLAN_STORE_TEST_ROUND";
const WRITERS: usize = 8;

/// A child process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(dir: &Path, round: usize) -> (Running, BufReader<ChildStdout>) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "crash::writer", "--ignored", "--nocapture"]);
    command.env(FOLDER, dir).env(ROUND, round.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (Running(child), output)
}

#[tokio::test]
#[ignore = "the process that another test kills"]
async fn writer() {
    let dir = env::var(FOLDER).expect("another test starts this one");
    let round = env::var(ROUND).unwrap();
    let store: Arc<dyn Store> = Arc::new(DurableStore::open(Path::new(&dir), History::default()).unwrap());
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, round) = (Arc::clone(&store), round.clone());
        writers.spawn(async move {
            for number in 0.. {
                let (key, counter) = (format!("n/{round}-{writer}-{number}"), format!("counter-{writer}"));
                let (expected, count) = store.latest(NODE, &counter).map_or((None, 0), |object| {
                    (Some(object.revision()), content(&object).parse::<usize>().unwrap())
                });
                let one_more = put(NODE, &counter, &(count + 1).to_string(), expected);
                let steps = vec![put(SERVICE, &key, "1", None), put(SLICE, &key, "1", None), one_more];
                let done = commit(&*store, steps).await.unwrap();
                writeln!(std::io::stdout(), "done {key} {}", done.revision).unwrap();
            }
        });
    }
    writers.join_all().await;
}

#[test]
fn committed_transactions_survive_a_kill_whole() {
    let dir = tempfile::tempdir().unwrap();
    let begin = DurableStore::open(dir.path(), History::default()).unwrap().revision();
    let mut acknowledged: Vec<(String, u64)> = Vec::new();
    for (round, enough) in [40, 7, 150, 300].into_iter().enumerate() {
        let (running, output) = start(dir.path(), round);
        let mut lines = output.lines().map(Result::unwrap);
        let mut take = |line: &str| {
            let mut words = line.split(' ').skip_while(|word| *word != "done").skip(1);
            let (Some(key), Some(Ok(revision))) = (words.next(), words.next().map(str::parse)) else {
                return 0;
            };
            acknowledged.push((key.to_owned(), revision));
            1
        };
        let mut count = 0;
        while count < enough {
            count += take(&lines.next().expect("the writer goes on"));
        }
        drop(running);
        let rest: Vec<String> = lines.collect();
        // The last line may be incomplete.
        let whole = rest.len().saturating_sub(1);
        rest[..whole].iter().for_each(|line| _ = take(line));
        check(dir.path(), begin, &acknowledged);
    }
}

fn check(dir: &Path, begin: u64, acknowledged: &[(String, u64)]) {
    let store = DurableStore::open(dir, History::default()).unwrap();
    let counted: usize = (0..WRITERS)
        .filter_map(|writer| store.get(NODE, &format!("counter-{writer}")))
        .map(|it| content(&it).parse::<usize>().unwrap())
        .sum();
    assert!(counted >= acknowledged.len());
    assert_eq!((store.count(SERVICE), store.count(SLICE)), (counted, counted));
    let counters = changes(&store, NODE, begin, 1000).unwrap();
    assert_eq!(counters.len(), counted);
    for change in &counters {
        // The three steps of a transaction have consecutive revisions.
        let all = |resource| store.changes(resource, change.revision - 3, 1).unwrap().changes;
        assert_eq!(all(SERVICE)[0].revision, change.revision - 2);
        assert_eq!(all(SLICE)[0].revision, change.revision - 1);
    }
    for (key, revision) in acknowledged {
        assert_eq!(
            store.get(SERVICE, key).expect("an acknowledged object").revision(),
            revision - 2,
            "{key}"
        );
        assert!(*revision <= store.revision());
    }
}

#[test]
fn a_folder_has_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (running, output) = start(dir.path(), 0);
    let mut lines = output.lines().map(Result::unwrap);
    lines.find(|line| line.contains("done")).unwrap();
    let error = DurableStore::open(dir.path(), History::default()).unwrap_err();
    assert!(matches!(&error, OpenError::InUse(path) if path == dir.path()), "{error}");
    drop(running);
    DurableStore::open(dir.path(), History::default()).unwrap();
}
